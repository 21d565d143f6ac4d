package main

import (
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"
)

var completionShells = []string{"bash", "zsh", "fish"}

// completionScripts ask the program itself for every word, so that they are never older than it.
var completionScripts = map[string]string{
	"bash": `# bash completion for pollux
_pollux() {
    local word list=()
    COMPREPLY=()
    local current="${COMP_WORDS[COMP_CWORD]}"
    [[ $current == "=" ]] && current=
    mapfile -t list < <("${COMP_WORDS[0]}" NAME "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    if [[ ${list[0]} == FILES ]]; then
        compopt -o default
        return
    fi
    for word in "${list[@]}"; do
        word=${word%%$'\t'*}
        [[ $word == "$current"* ]] && COMPREPLY+=("$word")
    done
}
complete -F _pollux pollux
`,
	"zsh": `#compdef pollux
_pollux() {
    local -a list entries
    local line
    list=("${(@f)$("${words[1]}" NAME "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ ${list[1]} == FILES ]]; then
        _files
        return
    fi
    for line in $list; do
        entries+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
    done
    _describe 'pollux' entries
}
if [[ $funcstack[1] == _pollux ]]; then
    _pollux "$@"
else
    compdef _pollux pollux
fi
`,
	"fish": `# fish completion for pollux
function __pollux_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l list ($words[1] NAME $words[2..-1] 2>/dev/null)
    if test "$list[1]" = FILES
        __fish_complete_path (commandline -ct)
        return
    end
    printf '%s\n' $list
end
complete -c pollux -f -a '(__pollux_complete)'
`,
}

func completionCommand() *cli.Command {
	return &cli.Command{
		Name:  "completion",
		Usage: "print the shell's script that completes pollux's words",
		Description: "Commands, flags and what flags can be, as far as it can be listed. The Debian package installs all three.\n\n" +
			"   source <(pollux completion bash)\n" +
			"   pollux completion zsh > ~/.zfunc/_pollux\n" +
			"   pollux completion fish > ~/.config/fish/completions/pollux.fish",
		ArgsUsage: strings.Join(completionShells, "|"),
		Action: func(c *cli.Context) error {
			script, ok := completionScripts[c.Args().First()]
			if !ok || c.NArg() != 1 {
				return fmt.Errorf("completion: needs the name of a shell; allowed: %s", strings.Join(completionShells, ", "))
			}
			_, err := fmt.Fprint(c.App.Writer, strings.NewReplacer("NAME", completeName, "FILES", filesWanted).Replace(script))
			return err
		},
	}
}
