import { useQuery } from "@tanstack/react-query";
import { Empty, Loading } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { catalogueQueries } from "./queries";

const EXAMPLE = `[[skill_directories]]
directory = "/etc/runnel/skills.d"`;

export function SkillsTab() {
  const skills = useQuery(catalogueQueries.skills());
  if (skills.isPending) return <Loading what="catalogue.skills" />;
  if (skills.error !== null) return <Problem error={skills.error} />;
  if (skills.data.items.length === 0) return <Empty text="catalogue.none" command={EXAMPLE} />;
  return skills.data.items.map((skill) => (
    <article key={skill.skill_name} className="card">
      <h2>{skill.display_name ?? skill.skill_name}</h2>
      <p className="text">{skill.description}</p>
    </article>
  ));
}
