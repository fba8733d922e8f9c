package mapping

import (
	"cmp"
	"slices"
	"strings"
	"unique"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/registry/metakeys"
)

const (
	maxLabels = 64 // of one instance, besides the source's own
	ownLabels = 4
	bareTag   = "true"
	// labelTLS is what auto mTLS decides by.
	labelTLS = metakeys.TLSMode
	// labelLocality is how manifests say where a workload is.
	labelLocality = metakeys.IstioLocality
	// consulMeta begins the metadata that Consul itself gives nodes.
	consulMeta = "consul-"
)

// reservedDomains are those under which labels mean something to the mesh; a
// registration cannot set them.
//
//nolint:gochecknoglobals // read-only
var reservedDomains = []string{"fairlead.io", "istio.io"}

type pair struct {
	key, value string
	from       int8 // which of the sources of labels; the highest wins
}

const (
	fromNode int8 = iota
	fromTag
	fromMeta
	fromSource
)

// labeler is scratch space.
type labeler struct {
	pairs   []pair
	refused bool
	// withRefused counts the instances with refused labels; example is the first label
	// of them by name.
	withRefused int
	example     string
}

// labels are what DestinationRule subsets select by: metadata of the node, tags,
// metadata of the service and, over all of them, what the source says. Sorted by
// key; valid until the next call.
func (w *serviceMapping) labels(x *entry) []pair {
	l := &w.labeler
	l.pairs, l.refused = l.pairs[:0], false
	for k, v := range x.node.Meta {
		if !strings.HasPrefix(k, consulMeta) {
			l.add(k, v, fromNode)
		}
	}
	for _, tag := range x.service.Tags {
		k, v, found := strings.Cut(tag, "=")
		if !found {
			v = bareTag
		}
		if k != tagTLS {
			l.add(k, v, fromTag)
		}
	}
	for k, v := range x.service.Meta {
		l.add(k, v, fromMeta)
	}
	if l.refused {
		l.withRefused++
	}
	mode := tlsDisabled
	if w.takesMTLS(x) {
		mode = tlsIstio
	}
	l.pairs = append(
		l.pairs,
		pair{mesh.LabelConsulService, w.id, fromSource},
		pair{mesh.LabelConsulDatacenter, w.in.Datacenter, fromSource},
		pair{mesh.LabelConsulNode, w.intern(x.node.Node), fromSource},
		pair{labelTLS, mode, fromSource},
	)
	l.pairs = compacted(l.pairs)
	if n := len(l.pairs) - ownLabels; n > maxLabels {
		slices.SortFunc(l.pairs, func(a, b pair) int { return cmp.Or(cmp.Compare(b.from, a.from), cmp.Compare(a.key, b.key)) })
		l.pairs = compacted(l.pairs[:ownLabels+maxLabels])
		w.warn(CodeLabels, x.name(), "it has %d labels; %d count, metadata of the service first", n, maxLabels)
	}
	return l.pairs
}

// noteLabels tells of all instances at once: what serves other programs, such as
// the rules of a load balancer, is in the tags of all of them.
func (w *serviceMapping) noteLabels() {
	if n := w.labeler.withRefused; n > 0 {
		w.info(CodeLabels, "", "%d of its instances have tags or metadata that cannot be labels, such as %s", n, sanitize(w.labeler.example))
	}
}

func (l *labeler) add(key, value string, from int8) {
	switch {
	case key == "":
		// Nobody means anything by it.
	case key == metaNamespace || key == metaAccount || key == metaTLS:
		// They say who the instance is, not what it is like.
	case isReservedLabel(key) || !isLabelKey(key) || !isLabelValue(value):
		if !l.refused && l.withRefused == 0 || key < l.example {
			l.example = key
		}
		l.refused = true
	default:
		l.pairs = append(l.pairs, pair{key, value, from})
	}
}

// compacted leaves one pair of each key: that of the strongest source; among the
// tags, that with the lowest value.
func compacted(pairs []pair) []pair {
	slices.SortFunc(pairs, func(a, b pair) int {
		return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(b.from, a.from), cmp.Compare(a.value, b.value))
	})
	return slices.CompactFunc(pairs, func(a, b pair) bool { return a.key == b.key })
}

func isReservedLabel(key string) bool {
	if key == labelLocality {
		return true
	}
	prefix, _, found := strings.Cut(key, "/")
	if !found {
		return false
	}
	return slices.ContainsFunc(reservedDomains, func(domain string) bool {
		rest, ok := strings.CutSuffix(prefix, domain)
		return ok && (rest == "" || strings.HasSuffix(rest, "."))
	})
}

func (w *serviceMapping) asMap(pairs []pair) map[string]string {
	out := make(map[string]string, len(pairs))
	for _, p := range pairs {
		if p.from == fromSource {
			out[p.key] = p.value
		} else {
			out[w.intern(p.key)] = w.intern(p.value)
		}
	}
	return out
}

// intern returns the same string for equal ones: a fleet has very many instances
// with few words between them, and what a registration says should not keep the
// whole answer of Consul in memory. Instances of one service say much the same,
// and are looked up among themselves first.
func (w *serviceMapping) intern(s string) string {
	if s == "" {
		return ""
	}
	have, ok := w.words[s]
	if !ok {
		if w.words == nil {
			w.words = make(map[string]string, 2*ownLabels)
		}
		have = unique.Make(s).Value()
		w.words[have] = have
	}
	return have
}
