package peers;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.util.BloomFilter;

/** RocketMQ's own filters, asked directly. */
final class Filters {
    private Filters() {
    }

    static void register(Map<String, Driver.Op> ops) {
        ops.put("filter.evaluate", Filters::evaluate);
        ops.put("filter.bloom", Filters::bloom);
    }

    /**
     * For each of "cases", an expression and maps of properties: null when it does not compile, else one of
     * "true", "false", "null" and "error" per map.
     */
    private static Object evaluate(JSONObject args) {
        List<Object> result = new ArrayList<>();
        JSONArray cases = args.getJSONArray("cases");
        for (int i = 0; i < cases.size(); i++) {
            JSONObject one = cases.getJSONObject(i);
            Expression compiled;
            try {
                compiled = FilterFactory.INSTANCE.get("SQL92").compile(one.getString("expression"));
            } catch (Throwable refused) {
                result.add(null);
                continue;
            }
            List<String> answers = new ArrayList<>();
            JSONArray maps = one.getJSONArray("properties");
            for (int j = 0; j < maps.size(); j++) {
                answers.add(answer(compiled, maps.getJSONObject(j)));
            }
            result.add(answers);
        }
        return result;
    }

    private static String answer(Expression compiled, JSONObject map) {
        Map<String, String> properties = new HashMap<>();
        map.keySet().forEach(name -> properties.put(name, map.getString(name)));
        try {
            return String.valueOf(compiled.evaluate(new MessageEvaluationContext(properties)));
        } catch (Throwable error) {
            return "error";
        }
    }

    /** The size of a bloom filter for an error rate and a number of users, and the bits of some texts. */
    private static Object bloom(JSONObject args) {
        BloomFilter filter = BloomFilter.createByFn(args.getIntValue("f"), args.getIntValue("n"));
        List<Object> places = new ArrayList<>();
        JSONArray texts = args.getJSONArray("texts");
        for (int i = 0; i < texts.size(); i++) {
            List<Integer> bits = new ArrayList<>();
            for (int bit : filter.calcBitPositions(texts.getString(i))) {
                bits.add(bit);
            }
            places.add(bits);
        }
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("k", filter.getK());
        result.put("m", filter.getM());
        result.put("places", places);
        return result;
    }
}
