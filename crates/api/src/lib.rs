//! Words: the requests and answers of management
