package peers;

import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Consumers that answer what they are asked; asking is producer.request, through "call". */
final class Replies {
    private Replies() {
    }

    static void register(Map<String, Driver.Op> ops) {
        ops.put("replier.start", Replies::start);
        ops.put("replier.sent", args -> new ArrayList<>(((Replier) Driver.held(args)).sent));
    }

    /** Answers each message with a word before its body, and keeps what the broker said to each answer. */
    private static final class Replier implements Driver.Held {
        private final DefaultMQPushConsumer consumer;
        private final DefaultMQProducer producer;
        private final List<Object> sent = new CopyOnWriteArrayList<>();

        Replier(DefaultMQPushConsumer consumer, DefaultMQProducer producer) {
            this.consumer = consumer;
            this.producer = producer;
        }

        void reply(MessageExt asked, String word) {
            String text = word + new String(asked.getBody(), StandardCharsets.UTF_8);
            try {
                Message reply = MessageUtil.createReplyMessage(asked, text.getBytes(StandardCharsets.UTF_8));
                sent.add(producer.send(reply));
            } catch (Exception error) {
                sent.add(Driver.describe(error));
            }
        }

        @Override
        public Object target() {
            return consumer;
        }

        @Override
        public void shutdown() {
            consumer.shutdown();
            producer.shutdown();
        }
    }

    private static Object start(JSONObject args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(args.getString("group") + "-replies", Producers.hook(args));
        Producers.configure(producer, args);
        // So that a reply to nobody is told at once.
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            null, args.getString("group"), Producers.hook(args), new AllocateMessageQueueAveragely(), false, null);
        Producers.configure(consumer, args);
        JSONObject fromTheFirst = new JSONObject();
        fromTheFirst.put("consumeFromWhere", "CONSUME_FROM_FIRST_OFFSET");
        Reflect.configure(consumer, fromTheFirst);
        consumer.subscribe(args.getString("topic"), "*");
        Replier replier = new Replier(consumer, producer);
        String word = args.getString("word");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                replier.reply(message, word);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return Driver.hold("replier", replier);
    }
}
