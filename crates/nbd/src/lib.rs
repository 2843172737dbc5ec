//! Face: volumes as NBD exports
