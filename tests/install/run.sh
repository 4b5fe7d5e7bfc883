#!/usr/bin/env bash
# Installs a build and compiles main.cpp against it, by find_package and by pkg-config.
#   run.sh BUILD_DIR SOURCE_DIR CXX
set -euo pipefail
build=$1 source=$2 cxx=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/prefix" > /dev/null
cmake -G Ninja -S "$source" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_CXX_COMPILER="$cxx" > /dev/null
cmake --build "$work/build" > /dev/null
[ "$("$work/build/consumer")" = "f32 [2,4]" ]

export PKG_CONFIG_PATH
PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name quern.pc)")
# shellcheck disable=SC2046
"$cxx" -std=c++20 "$source/main.cpp" -o "$work/consumer" \
  $(pkg-config --static --cflags --libs quern)
[ "$("$work/consumer")" = "f32 [2,4]" ]
echo "find_package and pkg-config: built and ran"
