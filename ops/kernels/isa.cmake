# Which flags a kernel's translation unit gets: told from the end of its name. One row an ISA.
# -mtune=generic would split unaligned 32-byte loads; prefer 512-bit vectors where we ask for them.
set(QUERN_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c)
set(QUERN_ISA_FLAGS_avx512 ${QUERN_ISA_FLAGS_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl
    -mavx512cd -mprefer-vector-width=512 -mprfchw
    # GCC 12 builds its unmasked intrinsics on an undefined vector and then warns of it.
    $<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized> $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
set(QUERN_ISA_FLAGS_avx512_bf16 ${QUERN_ISA_FLAGS_avx512} -mavx512bf16)
set(QUERN_ISA_FLAGS_amx ${QUERN_ISA_FLAGS_avx512_bf16} -mamx-tile -mamx-bf16)
# The tiles of AVX-512: accumulators keep their registers between loops, addresses are those that are written.
set(QUERN_TILE_FLAGS $<$<CXX_COMPILER_ID:GNU>:-fira-region=one> $<$<CXX_COMPILER_ID:GNU>:-fno-ivopts>)
set(QUERN_ISAS_x86 avx2 avx512 avx512_bf16 amx)
# Before it has registers, GCC's scheduler lifts all loads of a step, and then spills accumulators.
set(QUERN_ISA_FLAGS_neon -march=armv8-a $<$<CXX_COMPILER_ID:GNU>:-fno-schedule-insns>)
set(QUERN_ISA_FLAGS_neon_bf16 ${QUERN_ISA_FLAGS_neon} -march=armv8.2-a+bf16)
set(QUERN_ISA_FLAGS_sve ${QUERN_ISA_FLAGS_neon} -march=armv8.2-a+sve)
set(QUERN_ISA_FLAGS_sve_bf16 ${QUERN_ISA_FLAGS_neon} -march=armv8.2-a+sve+bf16)
set(QUERN_ISAS_arm neon neon_bf16 sve sve_bf16)

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(QUERN_ISAS ${QUERN_ISAS_x86})
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64|ARM64")
  set(QUERN_ISAS ${QUERN_ISAS_arm})
  if(APPLE)  # no SVE, and its assembler knows no such instructions
    list(FILTER QUERN_ISAS EXCLUDE REGEX sve)
  endif()
endif()

# Gives the *_ISA.cpp of `target` their flags; takes those of other architectures out of the build.
function(quern_isa_flags target)
  get_target_property(sources ${target} SOURCES)
  foreach(source ${sources})
    foreach(isa ${QUERN_ISAS_x86} ${QUERN_ISAS_arm})
      if(source MATCHES "_${isa}\\.cpp$")
        if(isa IN_LIST QUERN_ISAS)
          set(flags ${QUERN_ISA_FLAGS_${isa}})
          if(source MATCHES "/gemm_avx512")
            list(APPEND flags ${QUERN_TILE_FLAGS})
          endif()
          set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${flags}")
        else()
          list(REMOVE_ITEM sources ${source})
        endif()
      endif()
    endforeach()
  endforeach()
  set_target_properties(${target} PROPERTIES SOURCES "${sources}")
endfunction()
