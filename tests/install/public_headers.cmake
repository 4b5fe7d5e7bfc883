# Every header that is installed is among those that users are given,
# or is named here as one for quern itself.
#   cmake -DSOURCE=QUERN -P public_headers.cmake
cmake_minimum_required(VERSION 3.25)
set(internal
  tensor/allocator.h tensor/asan.h tensor/check_dense.h tensor/convert.h tensor/divide.h
  tensor/events.h tensor/float_mode.h tensor/fork.h tensor/job.h tensor/loops.h
  tensor/own_blocks.h tensor/page_heap.h tensor/per_thread.h tensor/round_by_chance.h
  tensor/round_to_odd.h tensor/tasks.h tensor/text_formatter.h
  autograd/accumulate.h autograd/delete_in_turn.h
  nn/by_slab.h nn/file.h nn/file_replacement.h nn/image_format.h nn/image_resize.h nn/pickle.h
  nn/profiler_trace.h nn/row_table_file.h nn/safetensors_header.h nn/zip.h)

set(given)
foreach(list quern.h nn/nn.h optim/optim.h)  # those of ops are found by folder
  file(STRINGS ${SOURCE}/${list} lines REGEX "^#include \"quern/")
  list(TRANSFORM lines REPLACE "^#include \"quern/(.*)\"$" "\\1")
  list(APPEND given ${lines})
endforeach()

file(GLOB headers RELATIVE ${SOURCE} ${SOURCE}/tensor/*.h ${SOURCE}/autograd/*.h ${SOURCE}/nn/*.h
  ${SOURCE}/optim/*.h)
foreach(header ${headers})
  if(header IN_LIST given AND header IN_LIST internal)
    message(SEND_ERROR "${header}: internal, but given to users")
  elseif(NOT header IN_LIST given AND NOT header IN_LIST internal)
    message(SEND_ERROR
      "${header}: missing from quern.h, or from the list of all that its folder gives")
  endif()
endforeach()
foreach(header ${internal})
  if(NOT header IN_LIST headers)
    message(SEND_ERROR "${header}: internal, but there is none")
  endif()
endforeach()
