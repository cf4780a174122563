export default {
  input: "gateway.json",
  output: { path: "generated", module: { extension: ".js" } },
};
