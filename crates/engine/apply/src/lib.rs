//! JSON, merge and strategic merge patches of objects.
//! It never reads or stores an object by itself.
