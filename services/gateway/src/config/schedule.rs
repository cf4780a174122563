//! `[[schedules]]`, validated like schedules of the API.

use domain::schedule::check_schedule;
use protocol::schedule::ScheduleSpec;

use super::spec;
use super::table::{Reported, Table};

pub(super) fn read(table: Table<'_>) -> Result<ScheduleSpec, Reported> {
    spec::read(table, &[], check_schedule)
}
