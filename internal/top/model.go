package top

import (
	"context"
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
)

// Bounds of the time between two samples, and how long one may take.
const (
	IntervalMin    = 100 * time.Millisecond
	IntervalMax    = time.Hour
	sampleDeadline = 5 * time.Second
)

// Model is the interactive view. It keeps the last frame while the gateway does not answer, and goes on when it does again.
type Model struct {
	source   Source
	interval time.Duration
	colour   bool

	by      Order
	last    *Sample
	frame   Frame
	shown   bool      // there is a frame
	err     error     // why the last attempt had no answer
	since   time.Time // since when there is none
	paused  bool
	help    bool
	scroll  int
	asked   int // samples asked for: an answer to an earlier one is not taken
	waiting bool
	width   int
	height  int
}

// NewModel makes a view that takes a sample each interval.
func NewModel(source Source, interval time.Duration, by Order, colour bool) *Model {
	return &Model{source: source, interval: interval, by: by, colour: colour}
}

// sampled is the answer to a question.
type sampled struct {
	number int
	by     Order
	sample Sample
	err    error
	at     time.Time
}

// due says that it is time to ask again.
type due struct{ number int }

// Init is tea.Model's.
func (m *Model) Init() tea.Cmd { return m.ask() }

// ask takes a sample on another goroutine.
func (m *Model) ask() tea.Cmd {
	m.asked++
	m.waiting = true
	number, by, source := m.asked, m.by, m.source
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(context.Background(), sampleDeadline)
		defer cancel()
		s, err := source.Sample(ctx, by)
		return sampled{number, by, s, err, time.Now()}
	}
}

// later asks again when the interval has passed.
func (m *Model) later() tea.Cmd {
	number := m.asked
	return tea.Tick(m.interval, func(time.Time) tea.Msg { return due{number} })
}

// Update is tea.Model's.
func (m *Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case sampled:
		if msg.number != m.asked {
			break
		}
		m.waiting = false
		m.take(msg)
		return m, m.later()
	case due:
		if msg.number == m.asked && !m.paused && !m.waiting {
			return m, m.ask()
		}
	case tea.KeyPressMsg:
		return m, m.key(msg.String())
	}
	return m, nil
}

// take makes a frame of an answer.
func (m *Model) take(a sampled) {
	if a.err != nil {
		if m.err == nil {
			m.since = a.at
		}
		m.err = a.err
		return
	}
	m.err = nil
	m.frame = Between(m.last, &a.sample)
	m.last, m.shown = &a.sample, true
}

// key does what a key is for.
func (m *Model) key(key string) tea.Cmd {
	switch key {
	case "q", "ctrl+c", "esc":
		if m.help && key == "esc" {
			m.help = false
			return nil
		}
		return tea.Quit
	case "ctrl+z":
		return tea.Suspend
	case "?", "h":
		m.help = !m.help
	case "space", "p":
		m.paused = !m.paused
		if !m.paused && !m.waiting {
			return m.ask()
		}
	case "s":
		if m.by == ByLinks {
			m.by = ByRefused
		} else {
			m.by = ByLinks
		}
		return m.ask()
	case "+", "=":
		m.interval = max(m.interval/2, IntervalMin)
	case "-":
		m.interval = min(m.interval*2, IntervalMax)
	case "down", "j":
		m.scroll++
	case "up", "k":
		m.scroll = max(m.scroll-1, 0)
	case "pgdown":
		m.scroll += max(m.height-3, 1)
	case "pgup":
		m.scroll = max(m.scroll-max(m.height-3, 1), 0)
	case "home", "g":
		m.scroll = 0
	}
	return nil
}

var helpLines = []string{
	"q        quit",
	"space    pause, go on",
	"s        hosts by links, by refusals",
	"+ -      ask more often, less often",
	"up down  scroll (also page up, page down, home)",
	"? h      this help, and back",
	"",
	"BUSY     share of the time in poll rounds that found work",
	"GAP      the longest time between two polls was less than this",
	"BURST    packets in one poll, up to 64",
	"LOST     packets that came before a worker had room for them",
	"TO KERNEL  packets that are the gateway's own",
}

// View is tea.Model's.
func (m *Model) View() tea.View {
	v := tea.NewView(strings.Join(m.lines(), "\n"))
	v.AltScreen = true
	v.WindowTitle = "pollux top"
	return v
}

// lines fills the terminal: a status line, the body as far as it fits, and a line of keys.
func (m *Model) lines() []string {
	if m.width <= 0 || m.height <= 0 {
		return nil // its size is not known yet
	}
	s := style(m.colour)
	status, mark := m.status()
	lines := []string{s.paint(mark, cut(status, m.width))}
	room := m.height - 1
	if m.height > 4 {
		room--
	}
	var body []string
	switch {
	case m.help:
		for _, l := range helpLines {
			body = append(body, cut(l, m.width))
		}
	case m.shown:
		body = Text(&m.frame, m.by, m.width, m.colour)
	}
	m.scroll = max(min(m.scroll, len(body)-room), 0)
	body = body[m.scroll:]
	if len(body) > room {
		body = body[:max(room, 0)]
	}
	lines = append(lines, body...)
	if m.height > 4 {
		for len(lines) < m.height-1 {
			lines = append(lines, "")
		}
		lines = append(lines, cut("q quit  ? help  space pause  s sort hosts  + - interval", m.width))
	}
	return lines
}

// status is the first line: when this was, and whether it still is so.
func (m *Model) status() (text string, how mark) {
	switch {
	case m.err != nil:
		return fmt.Sprintf("pollux top - no answer since %s, trying again: %s", m.since.Format(time.TimeOnly), plain(strings.Join(strings.Fields(m.err.Error()), " "))), alarm
	case !m.shown:
		return "pollux top - asking the gateway", title
	case m.paused:
		return fmt.Sprintf("pollux top - %s, paused", m.frame.At.Format(time.TimeOnly)), warning
	}
	if m.frame.Interval == 0 {
		return fmt.Sprintf("pollux top - %s, rates come with the next sample", m.frame.At.Format(time.TimeOnly)), title
	}
	return fmt.Sprintf("pollux top - %s, every %s", m.frame.At.Format(time.TimeOnly), m.interval), title
}
