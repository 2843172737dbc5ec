//! Engine: owns the fabric map
