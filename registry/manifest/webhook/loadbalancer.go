package webhook

import (
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/metakeys"
)

func (c cursor) loadBalancer(lb *networking.LoadBalancerSettings, outlier bool) {
	if lb == nil {
		return
	}
	if h := lb.GetConsistentHash(); h != nil {
		c.at("consistentHash").consistentHash(h)
	}
	if lb.LocalityLbSetting != nil && lb.ZoneAwareLbSetting != nil {
		c.at("zoneAwareLbSetting").wrong("localityLbSetting and zoneAwareLbSetting exclude one another; keep one of them")
	}
	c.at("localityLbSetting").localities(lb.LocalityLbSetting, outlier)
	c.at("zoneAwareLbSetting").zones(lb.ZoneAwareLbSetting, outlier)
	if w := lb.Warmup; w != nil {
		at := c.at("warmup")
		if w.Duration == nil {
			at.wrong("the warm-up needs a duration")
		}
		at.duration("duration", w.Duration)
		if w.MinimumPercent.GetValue() > 100 {
			at.at("minimumPercent").wrong("%v %% is out of range; use at most 100", w.MinimumPercent.GetValue())
		}
		if w.Aggression != nil && w.Aggression.GetValue() <= 0 {
			at.at("aggression").wrong("%v is out of range; use more than 0 (1 is linear)", w.Aggression.GetValue())
		}
	}
}

// maglevLimit is Envoy's bound on the table, itself not allowed.
const maglevLimit = 5000011

func (c cursor) consistentHash(h *networking.LoadBalancerSettings_ConsistentHashLB) {
	if k := h.GetHttpCookie(); k != nil {
		c.at("httpCookie").cookie(k)
	}
	//nolint:staticcheck // people's files still have the old field
	if h.MinimumRingSize != 0 {
		c.at("minimumRingSize").warn("minimumRingSize is out of date; write ringHash.minimumRingSize")
		if h.GetHashAlgorithm() != nil {
			c.at("minimumRingSize").wrong("minimumRingSize, ringHash and maglev exclude one another; keep one of the last two")
		}
	}
	if m := h.GetMaglev(); m != nil {
		at := c.at("maglev").at("tableSize")
		switch {
		case m.TableSize == 0:
			at.wrong("maglev needs a tableSize; write a prime number such as 65537")
		case m.TableSize >= maglevLimit:
			at.wrong("the table size %d is too large; use a prime number below %d", m.TableSize, maglevLimit)
		case !isPrime(m.TableSize):
			at.wrong("the table size %d is not a prime number; use one such as 65537", m.TableSize)
		}
	}
}

func (c cursor) cookie(k *networking.LoadBalancerSettings_ConsistentHashLB_HTTPCookie) {
	if k.Name == "" {
		c.wrong("the cookie has no name")
	}
	seen := map[string]bool{}
	for i, a := range k.GetAttributes() {
		at := c.item("attributes", i).at("name")
		switch {
		case a.GetName() == "":
			at.wrong("the attribute of the cookie has no name")
		case seen[a.GetName()]:
			at.wrong("the attribute %q is used twice; remove one of them", a.GetName())
		}
		seen[a.GetName()] = true
	}
}

// isPrime takes 1 for a prime number, as Envoy does. n is below maglevLimit.
func isPrime(n uint64) bool {
	if n%2 == 0 {
		return n == 2
	}
	for f := uint64(3); f*f <= n; f += 2 {
		if n%f == 0 {
			return false
		}
	}
	return true
}

const (
	labelRegion  = metakeys.TopologyRegion
	labelZone    = metakeys.TopologyZone
	labelSubzone = metakeys.TopologySubzone
)

func isTopology(label string) bool {
	return label == labelRegion || label == labelZone || label == labelSubzone
}

func (c cursor) localities(l *networking.LocalityLoadBalancerSetting, outlier bool) {
	if l == nil {
		return
	}
	if len(l.Distribute) > 0 && len(l.Failover) > 0 {
		c.at("failover").wrong("distribute and failover exclude one another; keep one of them")
	}
	for i, p := range l.FailoverPriority {
		if len(l.Failover) > 0 && isTopology(p) {
			c.item("failoverPriority", i).wrong("the label %q cannot stand here beside failover, which orders regions; remove one of them", p)
		}
	}
	from := placed{}
	for i, d := range l.Distribute {
		c.item("distribute", i).distribution(d)
		c.item("distribute", i).at("from").because(from.add(d.GetFrom()))
	}
	if (len(l.Failover) > 0 || len(l.FailoverPriority) > 0) && !outlier {
		c.warn("failover takes place only with outlierDetection; add it to this policy")
	}
	for i, f := range l.Failover {
		c.item("failover", i).failover(f.GetFrom(), f.GetTo())
	}
}

func (c cursor) distribution(d *networking.LocalityLoadBalancerSetting_Distribute) {
	var total uint32
	to := placed{}
	for _, name := range sorted(d.GetTo()) {
		w := d.To[name]
		if w == 0 || w > 100 {
			c.entry("to", name).wrong("the weight %d is out of range; use 1 to 100", w)
		}
		total += w
		c.entry("to", name).because(to.add(name))
	}
	if total != 100 {
		c.at("to").wrong("the weights sum to %d; make them sum to 100", total)
	}
}

func (c cursor) failover(from, to string) {
	if from == to {
		c.wrong("from and to are the same region %q; name two", from)
	}
	if strings.Contains(from, "/") || strings.Contains(to, "/") {
		c.wrong("failover is from region to region; write the regions without zones")
	}
	if strings.Contains(from, "*") || strings.Contains(to, "*") {
		c.wrong("failover is from region to region; name them without wildcards")
	}
}

func (c cursor) zones(z *networking.ZoneAwareLoadBalancerSetting, outlier bool) {
	if z == nil {
		return
	}
	for i, p := range z.FailoverPriority {
		if isTopology(p) {
			c.item("failoverPriority", i).wrong("zone-aware balancing orders regions and zones itself; remove %q", p)
		}
	}
	if (len(z.Failover) > 0 || len(z.FailoverPriority) > 0) && !outlier {
		c.warn("failover takes place only with outlierDetection; add it to this policy")
	}
	for i, f := range z.Failover {
		c.item("failover", i).failover(f.GetFrom(), f.GetTo())
	}
}

// placed are the localities of one list so far: each as region, zone and subzone, "*" for what
// it does not say, and what it begins with, "" for the rest.
type placed map[[3]string]bool

// add says why the locality cannot follow those before it, or "".
func (p placed) add(locality string) string {
	if n := strings.Count(locality, "*"); n > 1 || n == 1 && !strings.HasSuffix(locality, "*") {
		return quoteLocality(locality) + " may hold one \"*\", at its end"
	}
	parts := strings.SplitN(locality, "/", 3)
	if slices.Contains(parts, "") {
		return quoteLocality(locality) + " has an empty part; write region, region/zone or region/zone/subzone"
	}
	place := [3]string{"*", "*", "*"}
	copy(place[:], parts)
	if p.overlaps(place, len(parts)) {
		return quoteLocality(locality) + " overlaps with one before it; remove one of the two"
	}
	p[[3]string{place[0]}], p[[3]string{place[0], place[1]}], p[place] = true, true, true
	return ""
}

// overlaps reports whether one of those so far has the place in it, or begins with all that its first parts say.
func (p placed) overlaps(place [3]string, depth int) bool {
	region, zone := place[0], place[1]
	switch {
	case p[[3]string{"*"}]:
		return true
	case depth == 1:
		return p[[3]string{region}]
	case p[[3]string{region, "*"}]:
		return true
	case depth == 2:
		return p[[3]string{region, zone}]
	default:
		return p[[3]string{region, zone, "*"}] || p[place]
	}
}

func quoteLocality(s string) string { return "the locality \"" + s + "\"" }
