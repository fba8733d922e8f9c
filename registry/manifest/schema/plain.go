package schema

import (
	"slices"
	"strings"

	"github.com/fairlead/fairlead/registry/manifest/tree"
)

// plain says of rules, by their text, where they hold at a glance: of nearly every
// value, and for a hundredth of what it costs to ask CEL. False means nothing: CEL
// is asked then, so that its words are the only ones that keep an object out.
//
//nolint:gochecknoglobals // a read-only table
var plain = map[string]func(n *tree.Node) bool{
	// Sockets, of WorkloadEntry and of what has its form.
	`self.startsWith("unix://") ? (self.substring(7, 8) == "/" || self.substring(7, 8) == "@") : true`: isNoSocket,
	`self.startsWith("unix://") ? !self.endsWith("/") : true`:                                          isNoSocket,
	`(has(self.address) ? self.address : "").startsWith("unix://") ? !has(self.ports) : true`: func(n *tree.Node) bool {
		at := n.Get("address")
		return lacks(n, "address") || at != nil && (isNoSocket(at) || lacks(n, "ports") && at.Kind == tree.String)
	},
	`has(self.address) || has(self.network)`: func(n *tree.Node) bool { return sets(n, "address") },
	// Selectors.
	`!self.contains("*")`: func(n *tree.Node) bool { return n.Kind == tree.String && !strings.Contains(n.Text, "*") },
	`self.all(key, !key.contains("*"))`: func(n *tree.Node) bool {
		return allKeys(n, func(key string) bool { return !strings.Contains(key, "*") })
	},
	`self.all(key, key.size() != 0)`: func(n *tree.Node) bool { return allKeys(n, func(key string) bool { return key != "" }) },
	// ServiceEntry.
	`(has(self.workloadSelector) ? 1 : 0) + (has(self.endpoints) ? 1 : 0) <= 1`: func(n *tree.Node) bool {
		return lacks(n, "workloadSelector") || lacks(n, "endpoints")
	},
	`!((has(self.addresses) ? self.addresses : []).exists(k, k.contains("/")) && !((has(self.resolution) ? self.resolution : "NONE") in ["STATIC", "NONE"]))`: func(n *tree.Node) bool {
		return lacks(n, "addresses") || isOneOf(n.Get("resolution"), "STATIC", "NONE") && isTexts(n.Get("addresses"))
	},
	`((has(self.resolution) ? self.resolution : "NONE") == "NONE") ? !has(self.endpoints) : true`: func(n *tree.Node) bool {
		return lacks(n, "endpoints") || isOneOf(n.Get("resolution"), "STATIC", "DNS")
	},
	`((has(self.resolution) ? self.resolution : "") == "DNS_ROUND_ROBIN") ? ((has(self.endpoints) ? self.endpoints : []).size() <= 1) : true`: func(n *tree.Node) bool {
		return lacks(n, "endpoints") || isOneOf(n.Get("resolution"), "STATIC", "DNS")
	},
	`self != "*"`: func(n *tree.Node) bool { return n.Kind == tree.String && n.Text != "*" },
	`self.all(l1, self.exists_one(l2, l1.number == l2.number))`: haveNumbers,
	`0 < self && self <= 65535`:                                 func(n *tree.Node) bool { return n.Kind == tree.Int && 0 < n.Int && n.Int <= 65535 },
}

func isNoSocket(n *tree.Node) bool {
	return n.Kind == tree.String && !strings.HasPrefix(n.Text, "unix:")
}

// sets and lacks are has() of a field of a map, and its contrary; of anything else
// neither holds.
func sets(n *tree.Node, name string) bool { return n.Kind == tree.Map && n.Field(name) != nil }

func lacks(n *tree.Node, name string) bool { return n.Kind == tree.Map && n.Field(name) == nil }

func allKeys(n *tree.Node, holds func(key string) bool) bool {
	if n.Kind != tree.Map {
		return false
	}
	for i := range n.Fields {
		if !holds(n.Fields[i].Key) {
			return false
		}
	}
	return true
}

// haveNumbers reports whether the items of a list are few, and each has a number
// that no other has.
func haveNumbers(n *tree.Node) bool {
	if n.Kind != tree.List || len(n.Items) > 16 {
		return false
	}
	for i, item := range n.Items {
		number := item.Get("number")
		if number == nil || number.Kind != tree.Int {
			return false
		}
		for _, other := range n.Items[:i] {
			if other.Get("number").Int == number.Int {
				return false
			}
		}
	}
	return true
}

func isOneOf(n *tree.Node, texts ...string) bool {
	return n != nil && n.Kind == tree.String && slices.Contains(texts, n.Text)
}

func isTexts(n *tree.Node) bool {
	if n.Kind != tree.List {
		return false
	}
	for _, item := range n.Items {
		if item.Kind != tree.String {
			return false
		}
	}
	return true
}
