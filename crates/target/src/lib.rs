//! Engine: serves the drives of a node
