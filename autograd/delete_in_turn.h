// Freeing long chains of owners: a graph is as deep as its network, and the stack is not.
#pragma once

namespace quern {

/// Base of a class T whose objects own each other, on whatever ways.
template <class T>
class InTurn {
 private:
  template <class>
  friend struct DeleteInTurn;
  T* next_ = nullptr;
};

/// The deleter of a std::shared_ptr<T>: an object whose last owner is itself being deleted waits
/// until that is gone. Allocates nothing, and so cannot fail.
template <class T>
struct DeleteInTurn {
  void operator()(T* object) const {
    static thread_local T* waiting = nullptr;
    static thread_local bool deleting = false;
    object->InTurn<T>::next_ = waiting;
    waiting = object;
    if (deleting) return;
    deleting = true;
    while (waiting != nullptr) {
      T* const next = waiting;
      waiting = next->InTurn<T>::next_;
      delete next;
    }
    deleting = false;
  }
};

}  // namespace quern
