//! One module per built-in controller: observed objects and time to wanted writes.
//! It never holds a queue or performs a write.
