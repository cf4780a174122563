//! The packages of skills of the configuration.

use std::collections::BTreeMap;

use crate::config::{Config, ConfigFault};
use crate::outbound::tool::SkillPackage;

/// The most skills of one configuration.
const SKILLS: usize = 500;

/// Those that can be read; what is wrong with the others is a fault.
pub(super) fn skills(
    config: &Config,
    faults: &mut Vec<ConfigFault>,
) -> BTreeMap<String, SkillPackage> {
    if config.skills.len() > SKILLS {
        let message = format!("has more than {SKILLS} entries");
        faults.push(ConfigFault::new("skills".to_owned(), message));
        return BTreeMap::new();
    }
    let mut packages = BTreeMap::new();
    for (index, entry) in config.skills.iter().enumerate() {
        match SkillPackage::read(&entry.directory, &entry.skill_name) {
            Ok(package) => {
                packages.insert(entry.skill_name.clone(), package);
            }
            Err(why) => faults.push(ConfigFault::new(format!("skills[{index}].directory"), why)),
        }
    }
    packages
}
