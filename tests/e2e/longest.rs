//! The longest tests. Tests start in the order of their names, so these start first and do not delay the end.

#[path = "crash.rs"]
mod crash;
#[path = "hostile_values.rs"]
mod hostile_values;
#[path = "outage.rs"]
mod outage;
#[path = "pressure.rs"]
mod pressure;
#[path = "replicas.rs"]
mod replicas;
#[path = "resume.rs"]
mod resume;
#[path = "shapes.rs"]
mod shapes;
