# A program's --help as help2man wants it, which knows "Options:", "Examples:" and "*Section*" as sections, "Group:" as a part of one,
# "  $ " before an example, and two spaces before an option's description.
function example(line,    commands, count, i) {
  sub(/;? *$/, "", line)
  count = split(line, commands, /; /)
  for (i = 1; i <= count; i++) examples = examples "  $ " commands[i] "\n"
}
/^Examples?: / {
  in_examples = 1
  sub(/^Examples?: /, "")
  example($0)
  next
}
in_examples && sub(/^     +(or: )?/, "") {
  example($0)
  next
}
{ in_examples = 0 }
/^Exit codes: / {
  notes = 1
  printf "\n*Exit status*\n"
  sub(/^Exit codes: /, "")
}
/^[^ ].*:$/ && !/^Positionals:/ && !options {
  options = 1
  if (!/^Options:/) print "Options:\n"
}
/^[^ ]/ && !/:$/ && options && !notes {
  notes = 1
  printf "\n*Notes*\n"
}
/^  -/ {
  match($0, /^  [^ ]+/)
  names = substr($0, 1, RLENGTH)
  rest = substr($0, RLENGTH + 1)
  gsub(/,-/, ", -", names)
  # CLI11 leaves one where the names fill their column.
  if (match(rest, /^ ([^ ]| [^ ])* \(default [^()]*\) [^ ]/)) rest = substr(rest, 1, RLENGTH - 1) " " substr(rest, RLENGTH)
  $0 = names rest
}
{ print }
END { if (examples) printf "\nExamples:\n\n%s", examples }
