// Restate's service: ten durable steps, each awaited before the next one, or all awaited at the end.

// The SDK calls this function of Node 22.
Promise.withResolvers ??= () => {
  const parts = {};
  parts.promise = new Promise((resolve, reject) => Object.assign(parts, { resolve, reject }));
  return parts;
};

const { RestatePromise, serve, service } = await import("@restatedev/restate-sdk");

const STEPS = Array.from({ length: 10 }, (_, number) => `word ${number + 1} `);

const bench = service({
  name: "bench",
  handlers: {
    awaited: async (context) => {
      for (const step of STEPS) await context.run(step, () => step);
      return "stop";
    },
    unawaited: async (context) => {
      await RestatePromise.all(STEPS.map((step) => context.run(step, () => step)));
      return "stop";
    },
  },
});

const port = await serve({ services: [bench], port: 0 });
console.log(`listening http://127.0.0.1:${port}`);
