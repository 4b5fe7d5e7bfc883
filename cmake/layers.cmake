# A layer is an object library whose sources are the .cpp files of one folder (for ops/kernels: of
# its folders). It is compiled with the headers of the layers it USES and no others, so that
# dependencies point one way by construction. In the build tree, as in an install, headers are
# <quern/LAYER/name.h>, and <quern/quern.h> is all of them.

function(quern_strict target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wconversion -Wno-sign-conversion
    -fno-math-errno -fno-trapping-math $<$<BOOL:${QUERN_WERROR}>:-Werror>)
  if(QUERN_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${QUERN_SANITIZE} -fno-sanitize-recover=all
      -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=${QUERN_SANITIZE})
  endif()
endfunction()

# What nearly every file includes: reading it again in each is a large part of compiling it. Files
# include what they use all the same; -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON finds one that does not.
set(QUERN_PRECOMPILED <fmt/core.h> <algorithm> <array> <cmath> <cstdint> <functional> <limits>
    <memory> <mutex> <optional> <span> <string> <string_view> <type_traits> <utility> <vector>)

# For what calls the library, tests and programs, to compile in less time: at -O1, unless LOOPS of
# their own are what takes theirs, and with the headers of tensors and any others that are named, or
# with those of another such target.
function(quern_caller target)
  cmake_parse_arguments(PARSE_ARGV 1 CALLER "LOOPS" "REUSE_FROM" "")
  get_target_property(type ${target} TYPE)
  if(type STREQUAL OBJECT_LIBRARY)  # a part of programs, compiled as they are
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIE)
  endif()
  if(NOT CALLER_LOOPS)
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
  if(CALLER_REUSE_FROM)
    target_precompile_headers(${target} REUSE_FROM ${CALLER_REUSE_FROM})
  else()
    target_precompile_headers(${target} PRIVATE ${QUERN_PRECOMPILED} ${CALLER_UNPARSED_ARGUMENTS}
      <quern/autograd/grad_mode.h> <quern/tensor/raw.h> <quern/tensor/tensor.h>)
  endif()
endfunction()

function(quern_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 LAYER "" "SOURCES" "USES;LINKS")
  set(folder ${PROJECT_SOURCE_DIR}/${LAYER_SOURCES})
  if(name STREQUAL kernels)
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${folder}/*.cpp)
  else()
    file(GLOB sources CONFIGURE_DEPENDS
      ${folder}/*.cpp ${folder}/detail/*.cpp ${folder}/fused/*.cpp)
  endif()
  set(include ${PROJECT_BINARY_DIR}/include/${name})
  get_filename_component(parent ${include}/quern/${LAYER_SOURCES} DIRECTORY)
  file(MAKE_DIRECTORY ${parent})
  file(CREATE_LINK ${folder} ${include}/quern/${LAYER_SOURCES} SYMBOLIC)

  add_library(quern_${name} OBJECT ${sources})
  target_include_directories(quern_${name} PUBLIC ${include})
  list(TRANSFORM LAYER_USES PREPEND quern_ OUTPUT_VARIABLE uses)
  target_link_libraries(quern_${name} PUBLIC ${uses} ${LAYER_LINKS})
  quern_strict(quern_${name})
  if(NOT name STREQUAL kernels)
    target_compile_options(quern_${name} PRIVATE ${QUERN_LAYER_FLAGS})
  endif()
  set(tensors "")  # of those that compute with them
  if(tensor IN_LIST LAYER_USES AND NOT name STREQUAL kernels)
    set(tensors <quern/tensor/raw.h> <quern/tensor/span.h> <quern/tensor/tensor.h>)
  endif()
  target_precompile_headers(quern_${name} PRIVATE ${QUERN_PRECOMPILED} ${tensors})
  set_property(GLOBAL APPEND PROPERTY QUERN_LAYERS ${name})
endfunction()

# libquern: all layers in one.
function(quern_library)
  get_property(layers GLOBAL PROPERTY QUERN_LAYERS)
  add_library(quern)
  add_library(quern::quern ALIAS quern)
  foreach(layer ${layers})
    target_sources(quern PRIVATE $<TARGET_OBJECTS:quern_${layer}>)
    target_include_directories(quern PUBLIC
      $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include/${layer}>)
  endforeach()
  # Of quern.h, and of ops/ops.h: the headers of all ops.
  set(include ${PROJECT_BINARY_DIR}/include/quern)
  file(MAKE_DIRECTORY ${include}/quern)
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/quern.h ${include}/quern/quern.h SYMBOLIC)
  file(GLOB ops RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS ops/*.h ops/fused/*.h)
  list(TRANSFORM ops REPLACE "(.+)" "#include \"quern/\\1\"\n")
  list(JOIN ops "" ops)
  file(CONFIGURE OUTPUT ${include}/quern/ops/ops.h CONTENT "// All ops.\n#pragma once\n${ops}")
  target_include_directories(quern PUBLIC $<BUILD_INTERFACE:${include}>)
  target_include_directories(quern PUBLIC $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(quern PUBLIC cxx_std_20)
  target_link_libraries(quern PUBLIC fmt::fmt PRIVATE OpenMP::OpenMP_CXX PkgConfig::SLEEF)
  foreach(name ${QUERN_OPTIONAL_LIBRARIES})
    target_link_libraries(quern PRIVATE PkgConfig::${name})
  endforeach()
  set_target_properties(quern PROPERTIES
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
  quern_strict(quern)
endfunction()
