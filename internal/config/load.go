package config

// Use says what a configuration is wanted for, where that decides what is allowed.
type Use struct {
	Replay bool // played over captures: there is no kernel to ask for the outside port's address
}

// Run is what `pollux run` can do now.
var Run = Use{}

// Replaying is what `pollux replay` can do now.
var Replaying = Use{Replay: true}

// Load reads the file (none when its name is empty), lays flags over it, and checks the whole.
func Load(file string, flags []Arg, use Use) (*Config, error) {
	root := &node{kind: mapping, at: place{name: "flags"}}
	if file != "" {
		data, err := ReadFile(file)
		if err != nil {
			return nil, err
		}
		if root, err = parse(file, data); err != nil {
			return nil, err
		}
	}
	return build(root, flags, use)
}

// Parse is Load for bytes; name stands for the file in errors.
func Parse(name string, data []byte, flags []Arg, use Use) (*Config, error) {
	root, err := parse(name, data)
	if err != nil {
		return nil, err
	}
	return build(root, flags, use)
}

func build(root *node, flags []Arg, use Use) (*Config, error) {
	if root.kind != mapping {
		return nil, errorAt(root.at, "the configuration is %s; allowed: a mapping with the keys %s", root.kind, join(children("")))
	}
	if err := overlay(root, flags); err != nil {
		return nil, err
	}
	s := defaults()
	if err := s.decode("", root); err != nil {
		return nil, err
	}
	if err := s.checkRequired(root); err != nil {
		return nil, err
	}
	if err := s.check(use); err != nil {
		return nil, err
	}
	return &Config{s: s}, nil
}

// decode reads one section, in the order written.
func (s *settings) decode(section string, n *node) error {
	seen := map[string]place{}
	for _, e := range n.entries {
		path := e.key
		if section != "" {
			path = section + "." + e.key
		}
		if !contains(children(section), e.key) {
			return errorAt(e.at, "unknown key %s%s; allowed: %s", (&node{text: e.key}).show(), in(section), join(children(section)))
		}
		if other, twice := seen[e.key]; twice {
			return errorAt(e.at, "%s is given at %s already; allowed: once", path, other)
		}
		seen[e.key] = e.at
		if err := s.decodeEntry(path, e); err != nil {
			return err
		}
	}
	return nil
}

func (s *settings) decodeEntry(path string, e entry) error {
	k := keyOf(path)
	if e.value.kind == empty {
		return errorAt(e.value.at, "%s has no value; give one or leave the key out", path)
	}
	if k == nil {
		if err := e.value.is(mapping, path, "a mapping with the keys "+join(children(path))); err != nil {
			return err
		}
		return s.decode(path, e.value)
	}
	if err := k.codec.decode(s, path, e.value); err != nil {
		return err
	}
	s.where[path] = e.value.at
	return nil
}

func in(section string) string {
	if section == "" {
		return ""
	}
	return " in " + section
}

// checkRequired sees to ports and nat.alias.
func (s *settings) checkRequired(root *node) error {
	if len(s.ports) == 0 {
		return errorAt(root.at, "ports is missing; needed: %s, or --inside NAME and --outside NAME", portList{}.allowed())
	}
	if len(s.alias) == 0 {
		at := root.at
		if e := root.find("nat"); e != nil {
			at = e.at
		}
		return errorAt(at, "nat.alias is missing; needed: a list of %s, or --alias", aliasAllowed)
	}
	return nil
}
