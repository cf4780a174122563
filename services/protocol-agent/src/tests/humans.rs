//! Approvals and questions.
