// Packs dist/ for the binary: each file as .br and .gz below services/gateway/assets/console. The gateway serves them as
// they are. With `--check` it writes nothing, and fails if the packed files are not those of dist/.
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { brotliCompressSync, brotliDecompressSync, gunzipSync, gzipSync } from "node:zlib";

const built = fileURLToPath(new URL("dist", import.meta.url));
const packed = fileURLToPath(new URL("../services/gateway/assets/console", import.meta.url));
const codings = {
  ".br": { pack: brotliCompressSync, unpack: brotliDecompressSync },
  ".gz": { pack: (content) => gzipSync(content, { level: 9 }), unpack: gunzipSync },
};

/** Paths of all files below a directory, relative to it. */
function files(directory) {
  const entries = readdirSync(directory, { recursive: true, withFileTypes: true });
  return entries
    .filter((entry) => entry.isFile())
    .map((entry) => relative(directory, join(entry.parentPath, entry.name)));
}

/** The unpacked content of a packed file, if there is one. */
function current(path, { unpack }) {
  try {
    return unpack(readFileSync(path));
  } catch {
    return undefined;
  }
}

mkdirSync(packed, { recursive: true });
const changed = [];
const stale = new Set(files(packed));
for (const file of files(built)) {
  const content = readFileSync(join(built, file));
  for (const [ending, coding] of Object.entries(codings)) {
    const path = join(packed, file + ending);
    stale.delete(file + ending);
    // Other versions of zlib pack other bytes: a file with the same content stays as it is.
    if (current(path, coding)?.equals(content)) continue;
    changed.push(file + ending);
    if (process.argv.includes("--check")) continue;
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, coding.pack(content));
  }
}
if (process.argv.includes("--check")) {
  if (changed.length + stale.size > 0) {
    console.error(
      "services/gateway/assets/console is not the build of console/: run `npm run build` there and commit",
    );
    console.error([...changed, ...stale].join("\n"));
    process.exitCode = 1;
  }
} else {
  for (const file of stale) rmSync(join(packed, file));
  console.log(`${changed.length} files changed, ${stale.size} removed`);
}
