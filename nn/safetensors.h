// The safetensors file format: a length, a JSON header and the elements, all little-endian.
//
//   u64 length | {"name": {"dtype": "F32", "shape": [2,3], "data_offsets": [0,24]}, ...} | data
//
// Offsets count from the end of the header, and the tensors cover the data without gap or overlap.
// The header may end in spaces and may hold "__metadata__", a map of strings.
// Format: github.com/huggingface/safetensors.
#pragma once
#include <map>
#include <string>

#include "quern/tensor/tensor_dict.h"

namespace quern {

using Metadata = std::map<std::string, std::string>;  ///< what a file says beside its tensors

/// Reads F32, F64, BF16, F16, I64, I32, U8 and BOOL, in the header's order. A file is not
/// trusted: all it says is checked against its size before anything is allocated for it. Errors
/// name the file and the tensor: unreadable, not a file, cut short; a header over 100 MB or not
/// JSON of that form; a repeated name; an unknown dtype; more than 8 dimensions; sizes and offsets
/// that do not agree.
TensorDict load_safetensors(const std::string& path);
/// The strings of a file, from its header alone. Errors: as load_safetensors().
Metadata load_safetensors_metadata(const std::string& path);

/// Writes f32, f64, bf16, f16, i64, i32, u8 and bool, in the dictionary's order and each tensor in
/// logical order whatever its strides. The file is there whole or not at all, on the disk on
/// return: FileReplacement tells what becomes of an older one and of links. Errors, after which an
/// older file is as it was: not writable, not a regular file, a full disk; a name or metadata that
/// is not UTF-8; the name "__metadata__".
void save_safetensors(const std::string& path, const TensorDict& tensors,
                      const Metadata& metadata = {});

}  // namespace quern
