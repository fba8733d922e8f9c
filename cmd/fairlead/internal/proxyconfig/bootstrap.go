package proxyconfig

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
)

// bootstrapRows are the settings of a bootstrap that people ask for; JSON and YAML have all.
func bootstrapRows(_ *Entry, b *bootstrapv3.Bootstrap) (rows [][]string) {
	add := func(name, value string) { rows = append(rows, []string{name, value}) }
	add("node id", b.GetNode().GetId())
	add("node cluster", b.GetNode().GetCluster())
	if v := b.GetNode().GetUserAgentBuildVersion().GetVersion(); v != nil {
		add("Envoy", fmt.Sprintf("%d.%d.%d", v.GetMajorNumber(), v.GetMinorNumber(), v.GetPatch()))
	}
	add("admin", socket(b.GetAdmin().GetAddress()))
	for _, s := range b.GetDynamicResources().GetAdsConfig().GetGrpcServices() {
		add("ADS cluster", s.GetEnvoyGrpc().GetClusterName())
	}
	for _, l := range b.GetStaticResources().GetListeners() {
		add("static listener", strings.TrimSpace(l.GetName()+" "+socket(l.GetAddress())))
	}
	for _, c := range b.GetStaticResources().GetClusters() {
		where := []string{c.GetName()}
		for _, g := range c.GetLoadAssignment().GetEndpoints() {
			for _, e := range g.GetLbEndpoints() {
				where = append(where, socket(e.GetEndpoint().GetAddress()))
			}
		}
		add("static cluster", strings.Join(where, " "))
	}
	for _, layer := range b.GetLayeredRuntime().GetLayers() {
		fields := layer.GetStaticLayer().GetFields()
		names := make([]string, 0, len(fields))
		for name := range fields {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			value, err := fields[name].MarshalJSON()
			if err == nil {
				add("runtime "+name, string(value))
			}
		}
	}
	return rows
}

// Loggers reads the answer of Envoy's /logging.
func Loggers(answer []byte) (Entry, error) {
	levels := map[string]string{}
	for line := range strings.Lines(string(answer)) {
		name, level, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if ok && level != "" {
			levels[name] = strings.TrimSpace(level)
		}
	}
	raw, err := json.Marshal(levels)
	return Entry{Type: Log, Name: "loggers", Accepted: true, Resource: raw}, err
}

func logRows(e *Entry) (rows [][]string, _ error) {
	var levels map[string]string
	if err := json.Unmarshal(e.Resource, &levels); err != nil {
		return nil, fmt.Errorf("reading log levels: %w", err)
	}
	for name, level := range levels {
		rows = append(rows, []string{name, level})
	}
	slices.SortFunc(rows, slices.Compare)
	return rows, nil
}

// overviewRows names a resource of any type.
func overviewRows(e *Entry) ([][]string, error) {
	accepted := "not yet"
	switch {
	case e.Rejected != "":
		accepted = "rejected: " + e.Rejected
	case e.Accepted:
		accepted = "yes"
	}
	return [][]string{{e.Type, e.Name, e.Version, accepted, from(e)}}, nil
}
