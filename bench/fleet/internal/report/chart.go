package report

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// Bar is one bar of a chart.
type Bar struct {
	Label string
	Value float64
	// Low and High are the spread; both 0 means none is drawn.
	Low, High float64
	// Text is written at the bar's end.
	Text string
	// Quoted bars were not measured in this run, and look so.
	Quoted bool
	// Own bars are those that the chart is about.
	Own bool
}

// Chart is bars on a logarithmic axis, with a line at the budget.
type Chart struct {
	Title, Subtitle string
	Bars            []Bar
	// Budget is drawn if it is above 0.
	Budget     float64
	BudgetText string
}

// Sizes of a chart, in pixels.
const (
	chartWidth = 860
	labelWidth = 270
	valueWidth = 130
	barHeight  = 22
	barStep    = 32
	topHeight  = 64
	axisHeight = 34
)

// SVG draws the chart. The same bars give the same bytes.
func (c Chart) SVG() string {
	low, high := c.span()
	plot := float64(chartWidth - labelWidth - valueWidth)
	x := func(v float64) float64 {
		if v <= 0 {
			return labelWidth
		}
		return labelWidth + plot*(math.Log10(v)-low)/(high-low)
	}
	height := topHeight + barStep*len(c.Bars) + axisHeight
	bottom := float64(height - axisHeight + 4)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s" font-family="system-ui, sans-serif" font-size="13">`+"\n",
		chartWidth, height, chartWidth, height, html.EscapeString(c.Title))
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", chartWidth, height)
	text(&b, 16, 24, "start", "#1f2933", `font-size="16" font-weight="600"`, c.Title)
	text(&b, 16, 44, "start", "#616e7c", "", c.Subtitle)
	for e := int(math.Ceil(low)); float64(e) <= high; e++ {
		at := x(math.Pow10(e))
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%.1f" stroke="#e4e7eb"/>`+"\n", at, topHeight-6, at, bottom)
		text(&b, at, bottom+18, "middle", "#616e7c", "", number(math.Pow10(e)))
	}
	for i, bar := range c.Bars {
		c.bar(&b, bar, topHeight+barStep*i, x)
	}
	if c.Budget > 0 {
		at := x(c.Budget)
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%.1f" stroke="#cf1124" stroke-width="2" stroke-dasharray="5 4"/>`+"\n", at, topHeight-6, at, bottom)
		text(&b, at, topHeight-10, "middle", "#cf1124", "", c.BudgetText)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func (c Chart) bar(b *strings.Builder, bar Bar, y int, x func(float64) float64) {
	fill := "#9aa5b1"
	switch {
	case bar.Own:
		fill = "#0b69a3"
	case bar.Quoted:
		fill = "#cbd2d9"
	}
	middle := float64(y) + barHeight/2 + 4.5
	text(b, labelWidth-10, middle, "end", "#1f2933", "", bar.Label)
	end := x(bar.Value)
	fmt.Fprintf(b, `<rect x="%d" y="%d" width="%.1f" height="%d" rx="2" fill="%s"/>`+"\n", labelWidth, y, max(end-labelWidth, 1), barHeight, fill)
	edge := end
	if bar.High > bar.Low {
		at := float64(y) + barHeight/2
		fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#1f2933" stroke-width="1.5"/>`+"\n", x(bar.Low), at, x(bar.High), at)
		edge = max(edge, x(bar.High))
	}
	text(b, edge+6, middle, "start", "#1f2933", "", bar.Text)
}

// span is the axis, in powers of ten: whole ones below and above all values.
func (c Chart) span() (low, high float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, v := range c.values() {
		if v > 0 {
			low, high = min(low, math.Log10(v)), max(high, math.Log10(v))
		}
	}
	if low > high {
		return 0, 1
	}
	// A bar needs some length, the smallest one too.
	low, high = math.Floor(low-0.15), math.Ceil(high)
	return low, max(high, low+1)
}

func (c Chart) values() []float64 {
	v := []float64{c.Budget}
	for _, bar := range c.Bars {
		v = append(v, bar.Value, bar.Low, bar.High)
	}
	return v
}

func number(v float64) string {
	if v >= 1 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%g", v)
}

func text(b *strings.Builder, x, y float64, anchor, fill, more, s string) {
	if more != "" {
		more = " " + more
	}
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="%s"%s>%s</text>`+"\n", x, y, anchor, fill, more, html.EscapeString(s))
}
