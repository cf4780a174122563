import { Component, type ReactNode } from "react";
import { Problem } from "./problem";

/** Shows a failure of a part of the page; the rest stays usable. */
export class Boundary extends Component<{ children: ReactNode }, { error: unknown }> {
  override state: { error: unknown } = { error: null };

  static getDerivedStateFromError(error: unknown): { error: unknown } {
    return { error };
  }

  override render(): ReactNode {
    const { error } = this.state;
    if (error === null) return this.props.children;
    return <Problem error={error} retry={() => this.setState({ error: null })} />;
  }
}
