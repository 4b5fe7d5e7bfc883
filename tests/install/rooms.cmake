# Rooms that the build leaves out when they are deleted: nobody outside includes their headers, and
# but for the table of kernels, which the build makes of what is there, nobody needs their symbols.
# And no room of kernels holds more than 16 files, no file of the library more than 400 lines, no
# line more than 100 characters: clang-format leaves comments and strings as they are.
#   cmake -DSOURCE=QUERN [-DOBJECTS=FOLDER -DNM=NM] -P rooms.cmake
cmake_minimum_required(VERSION 3.25)
set(deletable conv/winograd conv/depthwise)

file(GLOB_RECURSE files RELATIVE ${SOURCE} ${SOURCE}/tensor/* ${SOURCE}/autograd/* ${SOURCE}/ops/*
  ${SOURCE}/nn/* ${SOURCE}/optim/*)
foreach(file ${files})
  file(STRINGS ${SOURCE}/${file} includes REGEX "^#include")
  foreach(room ${deletable})
    if(NOT file MATCHES "^ops/kernels/${room}/" AND includes MATCHES "quern/ops/kernels/${room}/")
      message(SEND_ERROR "${file} includes a header of ${room}, which a build may lack")
    endif()
  endforeach()
  file(READ ${SOURCE}/${file} text)
  string(REGEX REPLACE "[^\n]" "" newlines "${text}")
  string(LENGTH "${newlines}" length)
  if(length GREATER 400)
    message(SEND_ERROR "${file}: ${length} lines, more than 400")
  endif()
endforeach()

# Sets `symbols` to those of object files that nm lists by these letters.
function(symbols_of objects letters symbols)
  execute_process(COMMAND ${NM} --no-demangle ${objects} OUTPUT_VARIABLE listed
    COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL " [${letters}] [^\n]+" lines "${listed}")
  list(TRANSFORM lines REPLACE "^ . " "")
  list(REMOVE_DUPLICATES lines)
  set(${symbols} "${lines}" PARENT_SCOPE)
endfunction()

if(NM)
  file(GLOB_RECURSE objects ${OBJECTS}/*.o)
  list(FILTER objects EXCLUDE REGEX "/kernels/table\\.cpp\\.o$")
  foreach(room ${deletable})
    get_filename_component(family ${room} NAME)
    set(theirs ${objects})
    set(others ${objects})
    set(in_room "/${room}/|/kernels/${family}_[a-z0-9_]+\\.cpp\\.o$")
    list(FILTER theirs INCLUDE REGEX "${in_room}")
    list(FILTER others EXCLUDE REGEX "${in_room}")
    symbols_of("${theirs}" "TDBR" defined)
    symbols_of("${others}" "U" needed)
    list(LENGTH defined count)
    if(count EQUAL 0)
      message(SEND_ERROR "${room}: no symbols in ${OBJECTS}")
    endif()
    foreach(symbol ${defined})
      if(symbol IN_LIST needed)
        message(SEND_ERROR "${symbol} of ${room} is needed outside, which a build may lack")
      endif()
    endforeach()
  endforeach()
endif()

file(GLOB_RECURSE rooms LIST_DIRECTORIES true ${SOURCE}/ops/kernels/*)
foreach(room ${SOURCE}/ops/kernels ${rooms})
  if(IS_DIRECTORY ${room})
    file(GLOB files LIST_DIRECTORIES false ${room}/*)
    list(LENGTH files count)
    if(count GREATER 16)
      message(SEND_ERROR "${room}: ${count} files, more than 16")
    endif()
  endif()
endforeach()

file(GLOB places RELATIVE ${SOURCE} ${SOURCE}/*.h ${SOURCE}/CMakeLists.txt)
list(APPEND places tensor autograd ops nn optim examples tests bench cmake)
set(ENV{LC_ALL} C.UTF-8)  # grep counts characters, not bytes
execute_process(COMMAND grep -rnE "^.{101,}$" --include=*.h --include=*.cpp --include=*.inc
  --include=*.cmake --include=CMakeLists.txt ${places}
  WORKING_DIRECTORY ${SOURCE} RESULT_VARIABLE none OUTPUT_VARIABLE lines)
if(none EQUAL 0)
  string(REGEX REPLACE "(:[0-9]+):[^\n]*" "\\1" lines "${lines}")
  message(SEND_ERROR "more than 100 characters:\n${lines}")
elseif(NOT none EQUAL 1)
  message(SEND_ERROR "grep: expected 0 or 1, got ${none}")
endif()
