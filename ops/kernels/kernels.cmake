# The instruction sets and the kernel families, a row each: what there is, once. The build makes a
# table of each family's records by it (table.h), which dispatch, tests and benchmarks walk.

# An instruction set: its name, as in tensor/types.h, and the compiler's flags. Worst first.
# -mtune=generic would split unaligned 32-byte loads; prefer 512-bit vectors where we ask for them.
set(QUERN_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c)
set(QUERN_ISA_FLAGS_avx512 ${QUERN_ISA_FLAGS_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl
    -mavx512cd -mprefer-vector-width=512 -mprfchw
    # GCC 12 builds its unmasked intrinsics on an undefined vector and then warns of it.
    $<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized> $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
set(QUERN_ISA_FLAGS_avx512_bf16 ${QUERN_ISA_FLAGS_avx512} -mavx512bf16
    # Clang 16 recurses without end over the shuffles of groups of channels.
    "$<$<CXX_COMPILER_ID:Clang>:-mllvm;-disable-vector-combine>")
set(QUERN_ISA_FLAGS_amx ${QUERN_ISA_FLAGS_avx512_bf16} -mamx-tile -mamx-bf16)
set(QUERN_ISAS_x86 avx2 avx512 avx512_bf16 amx)
# Ahead of register allocation, GCC's scheduler lifts all loads of a step, and accumulators are
# spilled for them.
set(QUERN_ISA_FLAGS_neon -march=armv8-a $<$<CXX_COMPILER_ID:GNU>:-fno-schedule-insns>)
set(QUERN_ISA_FLAGS_neon_bf16 ${QUERN_ISA_FLAGS_neon} -march=armv8.2-a+bf16)
set(QUERN_ISA_FLAGS_sve ${QUERN_ISA_FLAGS_neon} -march=armv8.2-a+sve)
set(QUERN_ISA_FLAGS_sve_bf16 ${QUERN_ISA_FLAGS_neon} -march=armv8.2-a+sve+bf16)
set(QUERN_ISAS_arm neon neon_bf16 sve sve_bf16)

# A family: its folder, the beginning of its files' names, its tables as record:name, and its units,
# best first. <family>_kernel.h is the contract. A unit is <family>_<unit>.cpp in the folder or
# below; where there is no such file, <family>_simd.h compiled for that instruction set. Units of
# another architecture, and those whose files are gone, are left out; one that is not named after an
# instruction set runs on any CPU.
set(QUERN_FAMILIES
  "gemm          gemm         GemmKernel:gemm
                 amx avx512_bf16 avx512 avx2 sve_bf16 sve neon_bf16 neon portable reference"
  "gemm          direct       DirectKernel:direct
                 avx512_bf16 avx512 avx2 portable reference"
  "pack          copy         CopyKernel:copy
                 avx512_bf16 avx512 avx2 neon_bf16 portable reference"
  "conv          conv         ConvKernel:conv        depthwise kn2row winograd brgemm reference"
  "conv/epilogue tile         TileKernel:conv_tile
                 avx512_bf16 avx512 avx2 neon_bf16 portable reference"
  "conv/depthwise depthwise   DepthwiseKernel:depthwise
                 avx512_bf16 avx512 avx2 neon_bf16 portable reference"
  "conv/winograd winograd     WinogradKernel:winograd       avx512 avx2 portable reference"
  "elementwise   elementwise  UnaryKernel:unary BinaryKernel:binary ComparisonKernel:comparison
                 ChoiceKernel:choice avx512_bf16 avx512 avx2 neon_bf16 portable reference"
  "image         resample     ResampleKernel:resample       avx512 avx2 portable reference"
  "lookup        lookup       RowCopyKernel:row_copy SegmentSumKernel:segment_sum
                 avx512 avx2 portable reference"
  "norm          batch_norm   BatchNormKernel:batch_norm    avx512 avx2 portable reference"
  "norm          join         JoinKernel:join
                 avx512_bf16 avx512 avx2 portable reference"
  "norm          layer_norm   LayerNormKernel:layer_norm    avx512 avx2 portable reference"
  "optim         update       SgdKernel:sgd AdamWKernel:adamw RmspropKernel:rmsprop
                 AdagradKernel:adagrad AdadeltaKernel:adadelta AdamaxKernel:adamax NAdamKernel:nadam
                 RAdamKernel:radam AsgdKernel:asgd LambKernel:lamb RpropKernel:rprop
                 avx512 avx2 portable reference"
  "pool          pool         PoolKernel:pool               avx512 avx2 portable planes reference"
  "reduce        row          RowKernel:row                 avx512 avx2 portable reference"
  "reduce        column       ColumnKernel:column           avx512 avx2 portable reference"
  "round         by_chance    ByChanceKernel:by_chance      avx512 avx2 portable reference")

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(QUERN_ISAS ${QUERN_ISAS_x86})
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64|ARM64")
  set(QUERN_ISAS ${QUERN_ISAS_arm})
  if(APPLE)  # no SVE, and its assembler knows no such instructions
    list(FILTER QUERN_ISAS EXCLUDE REGEX sve)
  endif()
endif()
# Without "portable" (on Arm: Neon) what no other unit has is computed by the references; the
# portable tile stays, since f64 has no other.
set(QUERN_ONLY_ISAS "" CACHE STRING
  "Instruction sets to build kernels for, e.g. portable;avx512: all, where empty")
foreach(isa ${QUERN_ONLY_ISAS})
  if(NOT isa IN_LIST QUERN_ISAS AND NOT isa STREQUAL portable)
    message(FATAL_ERROR "QUERN_ONLY_ISAS: expected some of portable;${QUERN_ISAS}, got ${isa}")
  endif()
endforeach()
if(QUERN_ONLY_ISAS)
  list(JOIN QUERN_ONLY_ISAS "|" only)
  list(FILTER QUERN_ISAS INCLUDE REGEX "^(${only})$")
  if(NOT portable IN_LIST QUERN_ONLY_ISAS)
    set(QUERN_WITHOUT portable)
  endif()
endif()

# Gives the *_ISA.cpp of `target` their flags; takes those of other architectures out of the build.
function(quern_isa_flags target)
  get_target_property(sources ${target} SOURCES)
  foreach(source ${sources})
    foreach(isa ${QUERN_ISAS_x86} ${QUERN_ISAS_arm})
      if(NOT source MATCHES "_${isa}\\.cpp$")
        continue()
      endif()
      if(isa IN_LIST QUERN_ISAS)
        set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS ${QUERN_ISA_FLAGS_${isa}})
        # Made without these flags.
        set_property(SOURCE ${source} PROPERTY SKIP_PRECOMPILE_HEADERS ON)
      else()
        list(REMOVE_ITEM sources ${source})
      endif()
    endforeach()
  endforeach()
  set_target_properties(${target} PROPERTIES SOURCES "${sources}")
endfunction()

# Sets `result` to the Isa that a unit needs: its own, portable where it is not named after one, or
# nothing where it is of another architecture.
function(quern_unit_isa unit result)
  set(${result} portable PARENT_SCOPE)
  if(unit IN_LIST QUERN_ISAS_x86 OR unit IN_LIST QUERN_ISAS_arm)
    set(${result} "" PARENT_SCOPE)
    if(unit IN_LIST QUERN_ISAS)
      set(${result} ${unit} PARENT_SCOPE)
    endif()
  endif()
endfunction()

# Adds the units of QUERN_FAMILIES to `target`, and the lists that table.cpp includes: contracts.inc
# and tables.inc.
function(quern_kernel_units target folder)
  set(generated ${PROJECT_BINARY_DIR}/kernels)
  set(contracts "")
  set(tables "")
  foreach(family ${QUERN_FAMILIES})
    string(REGEX MATCHALL "[^ \n]+" units "${family}")
    list(POP_FRONT units room name)
    set(records ${units})
    list(FILTER records INCLUDE REGEX ":")
    list(FILTER units EXCLUDE REGEX ":")
    if(NOT EXISTS ${folder}/${room})
      continue()
    endif()
    string(APPEND contracts "#include \"quern/ops/kernels/${room}/${name}_kernel.h\"\n")
    set(built "")
    foreach(unit ${units})
      quern_unit_isa(${unit} isa)
      file(GLOB_RECURSE source ${folder}/${room}/${name}_${unit}.cpp)
      if(NOT isa OR NOT (source OR EXISTS ${folder}/${room}/${name}_simd.h))
        continue()
      endif()
      if(NOT source)
        if(unit IN_LIST QUERN_WITHOUT)
          continue()
        endif()
        set(source ${generated}/${name}_${unit}.cpp)
        file(CONFIGURE OUTPUT ${source} CONTENT
          "#include \"quern/ops/kernels/${room}/${name}_simd.h\"\n")
        target_sources(${target} PRIVATE ${source})
      endif()
      set_property(SOURCE ${source} APPEND PROPERTY
        COMPILE_DEFINITIONS QUERN_UNIT=${unit} QUERN_ISA=${isa})
      # Their loops are unrolled as they are written: -O3 adds code, and no speed.
      if(name STREQUAL depthwise)
        set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS $<$<CONFIG:Release>:-O2>)
      endif()
      # Rounds each operation, on every architecture and wherever an element lies.
      if(unit STREQUAL reference)
        set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS -ffp-contract=off)
        set_property(SOURCE ${source} PROPERTY SKIP_PRECOMPILE_HEADERS ON)  # made without it
      endif()
      list(APPEND built ${unit})
    endforeach()
    foreach(record ${records})
      string(REGEX MATCH "(.*):(.*)" record ${record})
      list(TRANSFORM built PREPEND "${CMAKE_MATCH_2}_" OUTPUT_VARIABLE of_record)
      list(JOIN of_record ", " of_record)
      string(APPEND tables "QUERN_KIND(${CMAKE_MATCH_1}, ${of_record})\n")
    endforeach()
  endforeach()
  file(CONFIGURE OUTPUT ${generated}/contracts.inc CONTENT "${contracts}")
  file(CONFIGURE OUTPUT ${generated}/tables.inc CONTENT "${tables}")
  target_include_directories(${target} PRIVATE ${generated})
  quern_isa_flags(${target})
  # The tiles of AVX-512. GCC is to allocate registers for a whole function, so that accumulators
  # are not moved between loops, and to leave address arithmetic as it is written.
  foreach(unit avx512 avx512_bf16)
    set_property(SOURCE ${folder}/gemm/tiles/gemm_${unit}.cpp APPEND PROPERTY COMPILE_OPTIONS
      $<$<CXX_COMPILER_ID:GNU>:-fira-region=one> $<$<CXX_COMPILER_ID:GNU>:-fno-ivopts>)
    # Clang's sanitizers check each lane of a masked vector, by calls around which all registers are
    # spilled: minutes to compile, and not a bit quicker to run than unoptimised tiles.
    if(QUERN_SANITIZE)
      set_property(SOURCE ${folder}/gemm/tiles/gemm_${unit}.cpp APPEND PROPERTY COMPILE_OPTIONS
        $<$<CXX_COMPILER_ID:Clang>:-O0>)
    endif()
  endforeach()
endfunction()
