// Files of torch.save: .pth and .pt, in the zip form (torch 1.6 and later) and the stream form that
// came before it.
//
// Such a file holds a pickle, which is a program. It is read by a machine of our own that knows
// tensors, dictionaries, lists, tuples, numbers and strings; nothing in a file is ever executed,
// and one that names anything else (os.system) is refused by that name.
#pragma once
#include <string>

#include "quern/tensor/tensor_dict.h"

namespace quern {

/// The tensors of a state_dict that torch.save wrote, in its order: the dictionary that the file
/// holds, or the one in it under "state_dict", "model_state_dict", "model" or "net", or in turn in
/// that. What is not a tensor there is left out. f32, f64, bf16, f16, i64, i32, u8 and bool.
/// Tensors that shared a storage share one, with the strides that they had.
///
/// Only what these tensors need is read, once, from the file into their storages. A file is not
/// trusted: all sizes are checked against its own before anything is allocated. Errors name the
/// file: unreadable, cut short, of neither form, an entry that is compressed or whose checksum does
/// not fit; a pickle that names or calls what is not in the list above, or no dictionary of
/// tensors; another dtype; more than 8 dimensions; a tensor outside its storage; the zip form,
/// where quern was built without libzip.
TensorDict load_pth(const std::string& path);

/// A file of weights in any form: load_safetensors() or load_pth(), by what is in it and not by its
/// name; of a checkpoint of ours, the model. A prefix that all names share, "module."
/// (DataParallel), "model." or "_orig_mod." (torch.compile), is taken off.
/// Errors: those of the two; a file that is neither.
TensorDict load_weights(const std::string& path);

}  // namespace quern
