//! Mounts of a process, parsed from `/proc/self/mountinfo`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use nix::mount::MsFlags;

/// Mount with the options that a remount has to repeat.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MountPoint {
    pub(super) path: PathBuf,
    pub(super) flags: MsFlags,
}

/// Mount options by their names in the table. Other names are options of the file system.
const OPTIONS: [(&str, MsFlags); 6] = [
    ("nosuid", MsFlags::MS_NOSUID),
    ("nodev", MsFlags::MS_NODEV),
    ("noexec", MsFlags::MS_NOEXEC),
    ("noatime", MsFlags::MS_NOATIME),
    ("nodiratime", MsFlags::MS_NODIRATIME),
    ("relatime", MsFlags::MS_RELATIME),
];

pub(super) fn mount_points(table: &str) -> impl Iterator<Item = MountPoint> {
    table.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(4);
        let path = unescaped(fields.next()?);
        let options = fields.next()?;
        let given = |name: &str| options.split(',').any(|option| option == name);
        let flags = OPTIONS.iter().filter(|(name, _)| given(name));
        Some(MountPoint {
            path,
            flags: flags.map(|(_, flag)| *flag).collect(),
        })
    })
}

/// Decodes the octal escapes of the table: spaces, tabs, line ends and backslashes.
fn unescaped(field: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let [first, tail @ ..] = rest {
        let octal = (*first == b'\\').then(|| tail.get(..3)).flatten();
        let number = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = number.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &tail[3..] } else { tail };
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_paths_and_options() {
        let table = "36 35 98:0 /a /mnt/one\\040two rw,nosuid,relatime shared:1 - ext4 /dev/sda rw\n\
                     37 35 0:5 / /dev ro - devtmpfs none rw\nshort\n";
        let expected = [
            MountPoint {
                path: "/mnt/one two".into(),
                flags: MsFlags::MS_NOSUID | MsFlags::MS_RELATIME,
            },
            MountPoint {
                path: "/dev".into(),
                flags: MsFlags::empty(),
            },
        ];
        assert_eq!(mount_points(table).collect::<Vec<_>>(), expected);
    }
}
