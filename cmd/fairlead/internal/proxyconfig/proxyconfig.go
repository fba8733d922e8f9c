package proxyconfig

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// proxyConfigRows are the settings of the ProxyConfig that is in force for a proxy.
func proxyConfigRows(e *Entry) (rows [][]string, _ error) {
	if e.empty() {
		return nil, nil
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(e.Resource, &fields); err != nil {
		return nil, fmt.Errorf("reading the ProxyConfig: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		var value bytes.Buffer
		if err := json.Compact(&value, fields[name]); err != nil {
			return nil, fmt.Errorf("reading the ProxyConfig: %w", err)
		}
		rows = append(rows, []string{name, value.String()})
	}
	return rows, nil
}
