package top

// style says whether lines may be coloured; the zero value writes plain text.
type style bool

// mark is why a line stands out.
type mark uint8

const (
	none mark = iota
	title
	warning
	alarm
)

// paint colours a whole line.
func (s style) paint(m mark, line string) string {
	if !s || m == none || line == "" {
		return line
	}
	return [...]string{title: "\x1b[1m", warning: "\x1b[33m", alarm: "\x1b[31m"}[m] + line + "\x1b[0m"
}
