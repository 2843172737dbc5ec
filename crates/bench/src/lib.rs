//! Face: load generator and benchmark
