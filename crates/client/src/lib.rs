//! Engine: attaches volumes; mirrored writes and reads
