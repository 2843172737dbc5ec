//! Face: the command line
