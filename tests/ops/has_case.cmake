# Every op of ops/*.h has a case in op_cases.cpp, or is named here as one that has none.
#   cmake -DSOURCE=QUERN -P has_case.cmake
cmake_minimum_required(VERSION 3.25)
set(without
  argmax         # the indices of max, which has one
  to lower widen # conversions, which the cases of all ops go through
)

file(READ ${SOURCE}/tests/ops/op_cases.cpp cases)
file(GLOB headers ${SOURCE}/ops/*.h ${SOURCE}/ops/fused/*.h)
foreach(header ${headers})
  file(STRINGS ${header} lines REGEX "^(Tensor|[A-Za-z]+Result) [a-z][a-z0-9_]*\\(")
  foreach(line ${lines})
    string(REGEX REPLACE "^[A-Za-z]+ ([a-z0-9_]+)\\(.*" "\\1" op ${line})
    if(NOT op IN_LIST without AND NOT cases MATCHES "{\"${op}[\"_]")
      message(SEND_ERROR "${op} of ${header}: no case in tests/ops/op_cases.cpp")
    endif()
  endforeach()
endforeach()
