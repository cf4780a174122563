mod bounds;
mod crash;
mod driver;
mod records;
mod recovery;
mod support;
