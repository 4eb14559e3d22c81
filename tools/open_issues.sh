#!/usr/bin/env bash
# Opens an issue for each FOLDER/*/issue.md that the sweeps left: its first line is the title. Where Actions
# opened an issue of exactly that title before, and it is open, the text becomes a comment of it. usage: tools/open_issues.sh FOLDER; GH_TOKEN and GH_REPO are for `gh`.
set -euo pipefail
shopt -s nullglob
for text in "$1"/*/issue.md; do
  title=$(head -n 1 "$text")
  body=$(mktemp)
  tail -n +3 "$text" > "$body"
  open=$(TITLE="$title" gh issue list --state open --app github-actions --search "in:title \"$title\"" \
    --json number,title --jq 'map(select(.title == env.TITLE))[0].number // empty')
  if [ -n "$open" ]; then
    gh issue comment "$open" --body-file "$body"
  else
    gh issue create --title "$title" --body-file "$body"
  fi
done
