package main

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"pollux/internal/config"
	"pollux/internal/control"
)

func showCommand() *cli.Command {
	return &cli.Command{
		Name:  "show",
		Usage: "look into a running gateway",
		Description: "Asks over the control socket. Nothing is stopped to be looked at: counters are what the workers last\n" +
			"published, and links come in slices between bursts. --json prints the API's answer, whose names are\n" +
			"stable (docs/api.md); --watch repeats.",
		Subcommands: []*cli.Command{
			showLinks(),
			showHosts(),
			showPeers(),
			showBlocks(),
			showPool(),
			showRedirects(),
			showRoutes(),
			showHops(),
			showWorkers(),
			showPorts(),
			showDrops(),
			showLog(),
			showConfig(),
		},
	}
}

// clientFlags find the control socket.
func clientFlags(more ...cli.Flag) []cli.Flag {
	return append([]cli.Flag{
		&cli.StringFlag{Name: "control", Usage: "control socket of the gateway", DefaultText: socketDefault},
		&cli.StringFlag{Name: "config", Aliases: []string{"c"}, Usage: "take control.socket from `FILE`, the gateway's configuration"},
		&cli.BoolFlag{Name: "json", Usage: "the API's own answer"},
	}, more...)
}

// given is a flag's value, wherever on the command line it stands: before or after a subcommand's name.
func given(c *cli.Context, name string) string {
	for _, at := range c.Lineage() {
		if v := at.String(name); v != "" {
			return v
		}
	}
	return ""
}

// socketDefault says it in help texts.
const socketDefault = config.DefaultSocket + ", else that of the service"

// usualSocket is where a gateway is looked for when nobody says where it is: one that was started by hand, else the service.
func usualSocket() string {
	if _, err := os.Stat(config.DefaultSocket); err != nil {
		if _, err := os.Stat(config.ServiceSocket); err == nil {
			return config.ServiceSocket
		}
	}
	return config.DefaultSocket
}

// clientOf connects to the socket that --control or the gateway's own file names.
func clientOf(c *cli.Context) (*control.Client, error) {
	path := given(c, "control")
	switch file := given(c, "config"); {
	case path != "" && file != "":
		return nil, errors.New("--control: is given besides -c; allowed: one of them")
	case path == "" && file == "":
		path = usualSocket()
	case path == "":
		cfg, err := config.Load(file, nil, config.Run)
		if err != nil {
			return nil, err
		}
		path = cfg.Control().Socket
	}
	return control.NewClient(path), nil
}

// raw copies the API's answer as it comes.
func raw(c *cli.Context, path string, q url.Values) error {
	client, err := clientOf(c)
	if err != nil {
		return err
	}
	body, err := client.Raw(c.Context, path, q)
	if err != nil {
		return fail(statusRuntime, err)
	}
	defer body.Close()
	if _, err := io.Copy(c.App.Writer, body); err != nil {
		return fail(statusRuntime, fmt.Errorf("the answer broke off: %w", err))
	}
	return nil
}

// listing is a command that shows one answer of the API.
type listing struct {
	name, usage, help string
	path              string
	flags             []cli.Flag
	query             func(c *cli.Context) (url.Values, error) // nil: no parameters
	print             func(c *cli.Context, client *control.Client, q url.Values, w io.Writer) error
}

func (l listing) command() *cli.Command {
	return &cli.Command{
		Name: l.name, Usage: l.usage, Description: l.help, Flags: clientFlags(append(l.flags, watchFlags()...)...),
		Action: func(c *cli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			q := url.Values{}
			if l.query != nil {
				var err error
				if q, err = l.query(c); err != nil {
					return err
				}
			}
			client, err := clientOf(c)
			if err != nil {
				return err
			}
			return watch(c, func() error {
				if c.Bool("json") {
					return raw(c, l.path, q)
				}
				w := tabwriter.NewWriter(c.App.Writer, 0, 0, 2, ' ', 0)
				if err := l.print(c, client, q, w); err != nil {
					return fail(statusRuntime, err)
				}
				return w.Flush()
			})
		},
	}
}

// tableMost is how many rows are lined up together: a table is held back to be measured.
const tableMost = 500

// rows prints a list as a table, in parts that are lined up each for itself when it is long.
func rows[T any](c *cli.Context, client *control.Client, path string, q url.Values, w io.Writer, head string, row func(*T) string) error {
	fmt.Fprintln(w, head)
	n := 0
	more, err := control.List(c.Context, client, path, q, func(entry *T) error {
		if n++; n%tableMost == 0 {
			if f, ok := w.(*tabwriter.Writer); ok {
				f.Flush()
			}
		}
		_, err := fmt.Fprintln(w, row(entry))
		return err
	})
	if more {
		fmt.Fprintf(w, "%d shown, there are more\n", n)
	}
	return err
}

// some is a number that may be missing.
func some[T any](n *T) string {
	if n == nil {
		return "-"
	}
	return fmt.Sprint(*n)
}

func showConfig() *cli.Command {
	return &cli.Command{
		Name:  "config",
		Usage: "the configuration in force, defaults included, as a file that would set it",
		Flags: clientFlags(),
		Action: func(c *cli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			if c.Bool("json") {
				return raw(c, "/v1/config", nil)
			}
			return raw(c, "/v1/config", url.Values{"format": {"yaml"}})
		},
	}
}
