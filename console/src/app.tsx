import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "@tanstack/react-router";
import { useEffect, useSyncExternalStore } from "react";
import { ApiError } from "./api/errors";
import { currentKey, subscribe } from "./api/session";
import { useLanguage } from "./i18n";
import { router } from "./router";
import { Boundary } from "./ui/boundary";
import { SignIn } from "./views/sign-in";

const MAX_RETRIES = 2;

const queries = new QueryClient({
  defaultOptions: {
    queries: {
      // The gateway marks what a repetition can repair. Errors of the network are worth one, too.
      retry: (failures, error) => failures < MAX_RETRIES && (!(error instanceof ApiError) || error.retryable),
      staleTime: 1000,
    },
  },
});

export function App() {
  const key = useSyncExternalStore(subscribe, currentKey);
  const language = useLanguage();
  useEffect(() => {
    // The script selects the glyphs of characters that Chinese and Japanese share.
    document.documentElement.lang = language === "zh" ? "zh-Hans" : language;
  }, [language]);
  useEffect(() => {
    // The next key may have other rights: nothing of the last one stays.
    if (key === null) queries.clear();
  }, [key]);
  return (
    <Boundary>
      {key === null ? (
        <SignIn />
      ) : (
        <QueryClientProvider client={queries} key={key}>
          <RouterProvider router={router} />
        </QueryClientProvider>
      )}
    </Boundary>
  );
}
