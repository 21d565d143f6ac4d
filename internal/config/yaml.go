package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

const (
	fileBytesMax = 4 << 20 // a configuration of some 50,000 redirects
	depthMax     = 8       // the contract nests 4 deep
)

// ReadFile reads a configuration's text, whatever the file is, and no more of it than a configuration may have.
func ReadFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, unreadable(name, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		return nil, fmt.Errorf("%s: is a directory; a YAML file is needed", name)
	}
	if err == nil && info.Size() > fileBytesMax {
		return nil, fmt.Errorf("%s: %d bytes; at most %d are read", name, info.Size(), fileBytesMax)
	}
	data, err := io.ReadAll(io.LimitReader(f, fileBytesMax+1)) // a pipe or a device has no size
	if err != nil {
		return nil, unreadable(name, err)
	}
	if len(data) > fileBytesMax {
		return nil, fmt.Errorf("%s: more than %d bytes, which are the most that are read", name, fileBytesMax)
	}
	return data, nil
}

func unreadable(name string, err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	return fmt.Errorf("%s: can't be read: %w", name, err)
}

// parse reads YAML into a tree. The subset is what the contract needs: one document of mappings, lists and scalars.
func parse(name string, data []byte) (*node, error) {
	start := place{name, 1, 1}
	if len(data) > fileBytesMax {
		return nil, errorAt(start, "%d bytes; at most %d are read", len(data), fileBytesMax)
	}
	if err := checkBytes(name, data); err != nil {
		return nil, err
	}
	file, err := parseAST(name, string(data))
	if err != nil {
		return nil, err
	}
	var body ast.Node
	for _, doc := range file.Docs {
		if doc.Body == nil {
			continue
		}
		if body != nil {
			return nil, errorAt(placeOf(name, doc.Body), "a second YAML document; allowed: one")
		}
		body = doc.Body
	}
	if body == nil {
		return &node{kind: mapping, at: start}, nil
	}
	return convert(name, body, 0)
}

// checkBytes refuses what has no business in a configuration, before the YAML library sees it.
func checkBytes(name string, data []byte) error {
	line, col := 1, 1
	for len(data) > 0 {
		r, size := utf8.DecodeRune(data)
		switch {
		case r == utf8.RuneError && size == 1:
			return errorAt(place{name, line, col}, "the byte %#02x is not UTF-8; allowed: UTF-8 text", data[0])
		case r == '\r' && len(data) > 1 && data[1] == '\n':
		case r < ' ' && r != '\n' && r != '\t', r == 0x7f, r == 0xfeff:
			return errorAt(place{name, line, col}, "the control character %U; allowed: plain text", r)
		}
		if col++; r == '\n' {
			line, col = line+1, 1
		}
		data = data[size:]
	}
	return nil
}

// parseAST runs the library behind a check of the tokens: YAML's clever features are refused by name, and nesting is
// bounded, because the library's parser is recursive.
func parseAST(name, text string) (file *ast.File, err error) {
	defer func() {
		if p := recover(); p != nil {
			file, err = nil, errorAt(place{name, 1, 1}, "this is not YAML: the reader gave up (%s)", oneLine(fmt.Sprint(p)))
		}
	}()
	tokens := lexer.Tokenize(text)
	if err := checkTokens(name, tokens); err != nil {
		return nil, err
	}
	file, err = parser.Parse(tokens, 0, parser.AllowDuplicateMapKey()) // duplicates are reported by us, with both places
	if err == nil {
		return file, nil
	}
	at, what := place{name, 1, 1}, err.Error()
	var syntax *yaml.SyntaxError
	if errors.As(err, &syntax) {
		what = syntax.Message
		if t := syntax.Token; t != nil && t.Position != nil {
			at = place{name, max(1, t.Position.Line), max(1, t.Position.Column)}
		}
	}
	return nil, errorAt(at, "not YAML: %s", oneLine(what))
}

func checkTokens(name string, tokens token.Tokens) error {
	depth, line, dashes := 0, 0, 0
	for _, t := range tokens {
		at := place{name, max(1, t.Position.Line), max(1, t.Position.Column)}
		switch t.Type {
		case token.AnchorType, token.AliasType, token.MergeKeyType:
			return errorAt(at, "YAML anchors and aliases are not used here; write the value out")
		case token.TagType, token.DirectiveType:
			return errorAt(at, "YAML tags and directives are not used here; allowed: plain values")
		case token.MappingKeyType:
			return errorAt(at, "YAML's ? keys are not used here; allowed: key: value")
		case token.SequenceStartType, token.MappingStartType:
			depth++
		case token.SequenceEndType, token.MappingEndType:
			depth--
		case token.SequenceEntryType:
			if t.Position.Line != line {
				line, dashes = t.Position.Line, 0
			}
			dashes++
		}
		if depth > depthMax || dashes > depthMax || t.Position.Column > 4096 && t.Type == token.SequenceEntryType {
			return errorAt(at, "nested too deep; allowed: %d levels", depthMax)
		}
	}
	return nil
}

func placeOf(name string, n ast.Node) place {
	switch v := n.(type) {
	case *ast.MappingNode:
		if !v.IsFlowStyle && len(v.Values) > 0 {
			return placeOf(name, v.Values[0].Key)
		}
	case *ast.MappingValueNode:
		return placeOf(name, v.Key)
	}
	t := n.GetToken()
	if t == nil || t.Position == nil {
		return place{name, 1, 1}
	}
	return place{name, max(1, t.Position.Line), max(1, t.Position.Column)}
}

func convert(name string, n ast.Node, depth int) (*node, error) {
	at := placeOf(name, n)
	if depth > depthMax {
		return nil, errorAt(at, "nested too deep; allowed: %d levels", depthMax)
	}
	switch v := n.(type) {
	case *ast.MappingNode:
		return convertMapping(name, at, v.Values, depth)
	case *ast.MappingValueNode:
		return convertMapping(name, at, []*ast.MappingValueNode{v}, depth)
	case *ast.SequenceNode:
		out := &node{kind: list, at: at}
		for _, item := range v.Values {
			value, err := convert(name, item, depth+1)
			if err != nil {
				return nil, err
			}
			out.items = append(out.items, value)
		}
		return out, nil
	case *ast.NullNode:
		return &node{kind: empty, at: at}, nil
	case *ast.LiteralNode:
		return &node{at: at, text: v.Value.Value, quoted: true}, nil
	case *ast.StringNode:
		t := v.GetToken()
		return &node{at: at, text: v.Value, quoted: t.Type == token.SingleQuoteType || t.Type == token.DoubleQuoteType}, nil
	case ast.ScalarNode:
		return &node{at: at, text: strings.TrimSpace(n.GetToken().Value)}, nil
	}
	return nil, errorAt(at, "a YAML %s is not used here; allowed: mappings, lists, plain values", strings.ToLower(n.Type().String()))
}

func convertMapping(name string, at place, values []*ast.MappingValueNode, depth int) (*node, error) {
	out := &node{kind: mapping, at: at}
	for _, v := range values {
		keyAt := placeOf(name, v.Key)
		key := v.Key.GetToken()
		value, err := convert(name, v.Value, depth+1)
		if err != nil {
			return nil, err
		}
		if value.kind == empty {
			value.at = keyAt
		}
		out.entries = append(out.entries, entry{key: key.Value, at: keyAt, value: value})
	}
	return out, nil
}

// oneLine keeps a foreign message to one line.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
