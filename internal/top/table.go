package top

import (
	"math"
	"strings"
	"unicode/utf8"
)

// column is one column of a table. On a narrow terminal the columns with the highest drop go first; those with 0 stay.
type column struct {
	title string
	left  bool
	drop  int
	flex  bool // the last one only: cut to the room that is left, if that is enough to read
}

// flexLeast is the least room that a cut column is shown in.
const flexLeast = 20

// row is one line's cells and how it is to be marked.
type row struct {
	cells []string
	mark  mark
}

// layOut makes lines of a table, the titles first, no longer than width (0: as long as they are).
func layOut(columns []column, rows []row, width int, s style) (lines []string) {
	widths := make([]int, len(columns))
	for i, c := range columns {
		widths[i] = utf8.RuneCountInString(c.title)
		for _, r := range rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(r.cells[i]))
		}
	}
	show := fitting(columns, widths, width)
	line := func(cell func(i int) string) string {
		var b strings.Builder
		for _, i := range show {
			if b.Len() > 0 {
				b.WriteString("  ")
			}
			text := cell(i)
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text))
			if columns[i].left {
				b.WriteString(text + pad)
			} else {
				b.WriteString(pad + text)
			}
		}
		// What is cut here is a flexible last column.
		return cut(strings.TrimRight(b.String(), " "), width)
	}
	lines = append(lines, s.paint(title, line(func(i int) string { return columns[i].title })))
	for _, r := range rows {
		lines = append(lines, s.paint(r.mark, line(func(i int) string { return r.cells[i] })))
	}
	return lines
}

// fitting picks the columns that there is room for.
func fitting(columns []column, widths []int, width int) (show []int) {
	for most := 0; ; most++ { // leave out columns with a drop of more than (highest - most)
		highest := 0
		for _, c := range columns {
			highest = max(highest, c.drop)
		}
		show = show[:0]
		sum := -2
		for i, c := range columns {
			if c.drop <= highest-most {
				show = append(show, i)
				sum += min(widths[i], room(c)) + 2
			}
		}
		if width == 0 || sum <= width || most == highest {
			return show
		}
	}
}

// room is the most that a column asks for.
func room(c column) int {
	if c.flex {
		return flexLeast
	}
	return math.MaxInt32
}

// pack puts phrases into as few lines as they fit.
func pack(phrases []string, width int) (lines []string) {
	const between = "   "
	line := ""
	for _, p := range phrases {
		switch {
		case line == "":
			line = p
		case width == 0 || utf8.RuneCountInString(line)+len(between)+utf8.RuneCountInString(p) <= width:
			line += between + p
		default:
			lines = append(lines, cut(line, width))
			line = p
		}
	}
	return append(lines, cut(line, width))
}

// cut shortens a line to width characters (0: not at all).
func cut(line string, width int) string {
	if width == 0 || utf8.RuneCountInString(line) <= width {
		return line
	}
	return string([]rune(line)[:width])
}

// plain makes text harmless for a terminal: names of devices and errors may hold anything.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 || r == utf8.RuneError {
			return '?'
		}
		return r
	}, text)
}
