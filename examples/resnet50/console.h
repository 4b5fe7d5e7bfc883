// Standard output and error. A run that cannot print goes on: its files are worth more.
#pragma once
#include <string_view>

namespace resnet50 {

/// Takes the places of closed standard streams, lest a file be opened there and printed into.
void occupy_standard_streams();

/// To standard output, at once.
void print(std::string_view text);

/// "resnet50: <text>" and the end of the line, to standard error.
void print_error(std::string_view text);

/// False if something that print() or the library wrote to standard output was lost: says so on
/// standard error.
bool all_printed();

}  // namespace resnet50
