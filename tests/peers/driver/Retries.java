package peers;

import com.alibaba.fastjson.JSONObject;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.common.message.MessageExt;

/** Giving back messages beside what the listener of a push consumer does. */
final class Retries {
    private Retries() {
    }

    static void register(Map<String, Driver.Op> ops) {
        ops.put("push.giveBack", Retries::giveBack);
    }

    /** Gives back a message that may not be where it says: then the client sends it itself. */
    private static Object giveBack(JSONObject args) throws Exception {
        MessageExt message = new MessageExt();
        message.setTopic(args.getString("topic"));
        message.setBody(args.getString("text").getBytes(StandardCharsets.UTF_8));
        message.setKeys(args.getString("keys"));
        message.setMsgId(args.getString("msgId"));
        message.setCommitLogOffset(args.getLongValue("commitLogOffset"));
        message.setReconsumeTimes(args.getIntValue("reconsumeTimes"));
        String[] address = args.getString("broker").split(":");
        message.setStoreHost(new InetSocketAddress(address[0], Integer.parseInt(address[1])));
        Driver.target(args, DefaultMQPushConsumer.class)
            .sendMessageBack(message, args.getIntValue("delayLevel"), args.getString("brokerName"));
        return null;
    }
}
