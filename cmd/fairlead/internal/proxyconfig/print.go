package proxyconfig

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"gopkg.in/yaml.v3"

	"github.com/fairlead/fairlead/internal/envoymask"
	"github.com/fairlead/fairlead/internal/safetext"
)

// Formats are the forms of output; the first one is the default.
func Formats() []string { return []string{"short", "json", "yaml"} }

// shown is an entry with the rows that filters leave.
type shown struct {
	Entry
	rows [][]string
}

// Write writes the resources of the type that the filters select.
func (t *Type) Write(w io.Writer, format string, filters map[string]string, entries []Entry) error {
	if t.Name != VirtualHost && t.Name != All { // there each is a row of its own
		var err error
		if entries, err = Merge(entries); err != nil {
			return err
		}
	}
	list, err := t.choose(filters, entries)
	if err != nil {
		return err
	}
	switch format {
	case "json", "yaml":
		return writeDocument(w, format, list)
	default:
		return t.writeTable(w, list)
	}
}

// choose describes and sorts what the filters select.
func (t *Type) choose(filters map[string]string, entries []Entry) ([]shown, error) {
	var list []shown
	for i := range entries {
		if t.Name != All && entries[i].Type != t.Name {
			continue
		}
		rows, err := t.rows(&entries[i])
		if err != nil {
			return nil, err
		}
		rows = slices.DeleteFunc(rows, func(row []string) bool { return !t.selects(filters, row) })
		if len(rows) > 0 || len(filters) == 0 {
			list = append(list, shown{entries[i], rows})
		}
	}
	slices.SortStableFunc(list, func(a, b shown) int { return t.compare(a.rows, b.rows) })
	return list, nil
}

// selects tells whether filters select a row. A cell may be a list.
func (t *Type) selects(filters map[string]string, row []string) bool {
	for name, want := range filters {
		found := false
		for i, c := range t.columns {
			found = found || c.filter == name && (strings.EqualFold(row[i], want) ||
				slices.ContainsFunc(strings.Split(row[i], ","), func(s string) bool { return strings.EqualFold(s, want) }))
		}
		if !found {
			return false
		}
	}
	return true
}

// compare orders two resources by their first rows. The rows of one have an order that counts.
func (t *Type) compare(a, b [][]string) int {
	if len(a) == 0 || len(b) == 0 {
		return cmp.Compare(len(a), len(b))
	}
	for _, i := range t.order {
		if c := natural(a[0][i], b[0][i]); c != 0 {
			return c
		}
	}
	return slices.CompareFunc(a[0], b[0], natural)
}

// natural compares numbers as numbers.
func natural(a, b string) int {
	x, errX := strconv.Atoi(a)
	y, errY := strconv.Atoi(b)
	if errX == nil && errY == nil {
		return cmp.Compare(x, y)
	}
	return cmp.Compare(a, b)
}

func (t *Type) writeTable(w io.Writer, list []shown) error {
	tw := tabwriter.NewWriter(w, 0, 4, 3, ' ', 0)
	var heads []string
	for _, c := range t.columns {
		if c.head != "" {
			heads = append(heads, c.head)
		}
	}
	if _, err := fmt.Fprintln(tw, strings.Join(heads, "\t")); err != nil {
		return err
	}
	for _, s := range list {
		for _, row := range s.rows {
			cells := make([]string, 0, len(row))
			for i, c := range t.columns {
				if c.head != "" {
					cells = append(cells, cmp.Or(safetext.Sanitize(row[i], 1024), "-"))
				}
			}
			if _, err := fmt.Fprintln(tw, strings.Join(cells, "\t")); err != nil {
				return err
			}
		}
	}
	return tw.Flush()
}

// writeDocument writes whole resources, with secrets masked.
func writeDocument(w io.Writer, format string, list []shown) error {
	entries := []Entry{}
	for _, s := range list {
		entries = append(entries, s.Entry)
	}
	raw, err := json.Marshal(entries)
	if err != nil {
		return fmt.Errorf("encoding the configuration: %w", err)
	}
	if raw, err = envoymask.JSON(raw); err != nil {
		return err
	}
	if format == "json" {
		var out bytes.Buffer
		if err := json.Indent(&out, raw, "", "  "); err != nil {
			return err
		}
		_, err := fmt.Fprintln(w, out.String())
		return err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		return fmt.Errorf("encoding the configuration: %w", err)
	}
	block(&doc)
	enc := yaml.NewEncoder(w)
	enc.SetIndent(2)
	if err := enc.Encode(&doc); err != nil {
		return err
	}
	return enc.Close()
}

// block makes a YAML document of a JSON one: every JSON document is one of YAML, in another style.
func block(n *yaml.Node) {
	n.Style = 0
	for _, c := range n.Content {
		block(c)
	}
}
