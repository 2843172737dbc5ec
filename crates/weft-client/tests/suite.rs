//! All tests of this crate that need nothing but its public parts: one program, built and linked once,
//! whose tests run beside each other.

mod fabric;
mod managers;
mod reach;
mod read;
mod watermark;
mod words;
mod write;
