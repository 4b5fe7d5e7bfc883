# Rooms that the build leaves out when they are deleted: nobody outside includes their headers. And
# no room of kernels holds more than 16 files, no file of the library more than 400 lines.
#   cmake -DSOURCE=QUERN -P rooms.cmake
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
