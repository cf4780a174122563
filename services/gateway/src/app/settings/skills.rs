//! Skills of the configuration: single ones and directories of skills.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use protocol::resources::SkillResource;

use crate::config::{Config, ConfigFault, SkillEntry, check_skill_name};
use tools::{SkillPackage, packages_in};

/// Maximum number of skills in one configuration.
const SKILLS: usize = 500;

/// Readable skills: resources for grants, and packages by name. Unreadable ones become faults.
pub(super) fn skills(
    config: &Config,
    faults: &mut Vec<ConfigFault>,
) -> (Vec<SkillResource>, BTreeMap<String, SkillPackage>) {
    let mut reading = SkillReader {
        directories: BTreeMap::new(),
        skills: Vec::new(),
        packages: BTreeMap::new(),
        faults,
    };
    for (index, entry) in config.skills.iter().enumerate() {
        reading.entry(entry, &format!("skills[{index}].directory"));
    }
    for (index, entry) in config.skill_directories.iter().enumerate() {
        let pointer = format!("skill_directories[{index}].directory");
        reading.directory(&entry.directory, &pointer);
    }
    if reading.directories.len() > SKILLS {
        let message = format!("has more than {SKILLS} skills in all");
        let pointer = if config.skill_directories.is_empty() {
            "skills"
        } else {
            "skill_directories"
        };
        reading.faults.push(ConfigFault::new(pointer, message));
    }
    (reading.skills, reading.packages)
}

struct SkillReader<'a> {
    /// Directory of each name.
    directories: BTreeMap<String, PathBuf>,
    skills: Vec<SkillResource>,
    packages: BTreeMap<String, SkillPackage>,
    faults: &'a mut Vec<ConfigFault>,
}

impl SkillReader<'_> {
    fn entry(&mut self, entry: &SkillEntry, pointer: &str) {
        let skill = SkillResource {
            skill_name: entry.skill_name.clone(),
            display_name: entry.display_name.clone(),
            description: entry.description.clone(),
            registered: None,
        };
        if let Err(why) = self.take(skill, &entry.directory) {
            self.faults.push(ConfigFault::new(pointer, why));
        }
    }

    /// Reads each subdirectory that has a `SKILL.md`. Faults name the subdirectory.
    fn directory(&mut self, directory: &Path, pointer: &str) {
        let packages = match packages_in(directory, SKILLS) {
            Ok(packages) => packages,
            Err(why) => {
                let message = format!("{} {why}", directory.display());
                return self.faults.push(ConfigFault::new(pointer, message));
            }
        };
        for package in packages {
            if let Err(why) = self.take_named(&package) {
                let message = format!("{}: {why}", package.display());
                self.faults.push(ConfigFault::new(pointer, message));
            }
        }
    }

    fn take_named(&mut self, package: &Path) -> Result<(), String> {
        let name = package.file_name().and_then(|name| name.to_str());
        let name = name.ok_or("the name of the directory is no UTF-8 text")?;
        check_skill_name(name).map_err(|why| format!("the name of the directory {why}"))?;
        let skill = SkillResource {
            skill_name: name.to_owned(),
            display_name: None,
            description: None,
            registered: None,
        };
        self.take(skill, package)
    }

    fn take(&mut self, mut skill: SkillResource, directory: &Path) -> Result<(), String> {
        let name = &skill.skill_name;
        if let Some(other) = self.directories.get(name) {
            let other = other.display();
            return Err(format!("the skill {name} is in {other} already; keep one"));
        }
        // Recorded before the package is read, so a second directory of the name is reported even if the first fails.
        self.directories.insert(name.clone(), directory.to_owned());
        let package = SkillPackage::read(directory, name)?;
        // The text of the configuration takes precedence over the front matter.
        if skill.description.is_none() {
            skill.description = Some(package.description.clone());
        }
        self.packages.insert(name.clone(), package);
        self.skills.push(skill);
        Ok(())
    }
}
