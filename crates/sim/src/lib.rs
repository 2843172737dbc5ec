//! Whole: a fabric in one process, with checkers
