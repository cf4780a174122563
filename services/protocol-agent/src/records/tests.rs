mod bounds;
mod records;
mod recovery;
mod support;
